"""Where records lie: a store of records with the images that their stage made; earlier images are looked up."""

from __future__ import annotations

import io
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from lightning_idc.core.shards import Shard, StoreError, check_shard, is_suspect, open_shard, read_shard, remove_shard
from lightning_idc.core.shards import write_shard as write_rows
from lightning_idc.core.store import Store, read_manifest, shard_name
from lightning_idc.synthesis.records import Record

REMEDY = (
    "run its stage again to rebuild it (of a recipe: remove the stage.json of that stage, then --resume), or check the "
    "path of the store"
)
_ROWS = 16
"""Records with images per batch of a shard: a million pixels in one row must not be held a thousandfold."""
_PLAIN = ("id", "facts", "history", "dropped", "origin")
_encode = json.JSONEncoder(ensure_ascii=False).encode


class RecordSource(Protocol):
    """Records by position, and a fingerprint that changes when any of them does."""

    @property
    def fingerprint(self) -> str: ...

    def __len__(self) -> int: ...

    def record(self, index: int) -> Record: ...


class AppendableSource(ABC):
    """A source to which records may be appended later; stages then make the new ones only."""

    @abstractmethod
    def prefix_fingerprint(self, records: int) -> str:
        """Fingerprint that the source had when it ended after so many records."""


def has_grown_from(source: RecordSource, fingerprint: str, records: int) -> bool:
    """Whether a source begins with the records of an earlier one.

    Args:
        source: as it is.
        fingerprint: of the earlier one.
        records: of the earlier one that were used.
    """
    if source.fingerprint == fingerprint:
        return True
    if isinstance(source, RecordStore):
        grown = source.manifest.get("grown", [])
        return any(known["fingerprint"] == fingerprint and known["rows"] >= records for known in grown)
    return isinstance(source, AppendableSource) and source.prefix_fingerprint(records) == fingerprint


def lineage_of(source: RecordSource) -> str:
    """Fingerprint of what makes the records of a source, back to where they begin; known before they are made."""
    known = source.manifest.get("lineage") if isinstance(source, RecordStore) else None
    return known or source.fingerprint


@cache
def _schema() -> Any:
    from datasets import Features, Image, Value

    images = [{"name": Value("string"), "image": Image(decode=False)}]
    arrays = [{"name": Value("string"), "values": Value("binary")}]
    texts = {name: Value("string") for name in ("id", "facts", "history", "dropped")}
    return Features({**texts, "origin": Value("int64"), "arrays": arrays, "images": images}).arrow_schema


def write_shard(folder: Path, number: int, records: Sequence[Record], failed: int = 0) -> None:
    """Write a shard and its digest, each as a whole or not at all.

    Args:
        folder: of the store, with its manifest.
        number: of the shard; an older one in its place is replaced.
        records: in order.
        failed: how many of them were dropped since the stage raised an error.
    """
    import pyarrow as pa

    rows = _ROWS if any(record.images or record.arrays for record in records) else max(1, len(records))
    batches = (
        pa.RecordBatch.from_pylist([_plain(record) for record in records[start : start + rows]], schema=_schema())
        for start in range(0, len(records), rows)
    )
    dropped = Counter(record.dropped["reason"] for record in records if record.dropped is not None)
    path, store = folder / f"{shard_name(number)}.arrow", read_manifest(folder, "records", REMEDY)["fingerprint"]
    lazy = "images" if any(record.images for record in records) else None
    write_rows(path, store, batches, _schema(), about={"dropped": dict(dropped), "failed": failed}, lazy=lazy)


def _plain(record: Record) -> dict[str, Any]:
    return {
        "id": record.id,
        "facts": _encode(record.facts),
        "history": _encode(record.history),
        "dropped": None if record.dropped is None else _encode(record.dropped),
        "origin": record.origin,
        "images": [{"name": name, "image": {"bytes": data, "path": None}} for name, data in record.images.items()],
        "arrays": [{"name": name, "values": _pack(values)} for name, values in record.arrays.items()],
    }


def _pack(values: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, values, allow_pickle=False)
    return stream.getvalue()


def _unpack(data: bytes) -> np.ndarray:
    try:
        return np.asarray(np.load(io.BytesIO(data), allow_pickle=False))
    except (ValueError, EOFError, OSError) as error:
        raise StoreError(f"an array of a record cannot be read ({error}); {REMEDY}") from error


class RecordStore(Store):
    """Records that a stage made, read one at a time from memory-mapped shards.

    Args:
        folder: with a complete manifest.

    Raises:
        StoreError: the folder holds no finished store.
    """

    _below: frozenset[Path] = frozenset()
    """Stores that were made from this one, as far as it was opened for them."""

    def __init__(self, folder: str | Path) -> None:
        if not read_manifest(Path(folder), "records", REMEDY).get("complete"):
            raise StoreError(f"{folder} was not finished; run its stage again, which continues where it stopped")
        super().__init__(folder, "records", REMEDY)
        self._parent: RecordStore | None = None

    @property
    def parent(self) -> RecordStore | None:
        """Store that the records were made from, which holds their earlier images; None for the first one."""
        if self._parent is None and self.manifest["source"] is not None:
            source = (self.folder / self.manifest["source"]).resolve()
            below = self._below | {self.folder.resolve()}
            if source in below:
                raise StoreError(f"{self.folder} says that it was made from itself; {REMEDY}")
            self._parent = self._opened(source)
            self._parent._below = below
        return self._parent

    def _opened(self, folder: Path) -> RecordStore:
        return RecordStore(folder)

    def check(self) -> None:
        """See `Store`; the stores that the records were made from are checked, too."""
        super().check()
        if self.parent is not None:
            self.parent.check()

    def record(self, index: int) -> Record:
        """One record; its images stay encoded until they are asked for."""
        shard, row = self.locate(index)
        values = open_shard(shard).row(row, (*_PLAIN, "images", "arrays"))
        record = _record_of(values, index)
        record.images = {item["name"]: item["image"]["bytes"] for item in values["images"]}
        if values["origin"] is not None:
            record.inherit = partial(self._earlier, values["origin"])
        return record

    def linked(self, index: int) -> Record:
        """One record for a later stage: its images are looked up here when they are asked for, and not before."""
        shard, row = self.locate(index)
        record = _record_of(open_shard(shard).row(row, (*_PLAIN, "arrays")), index)
        record.inherit = partial(self.lookup, index)
        return record

    def lookup(self, index: int, name: str) -> bytes | None:
        """Encoded image of a record, or of the one that it was made from; None where neither has it."""
        data = self._item(index, "images", name)
        if data is not None:
            return data["image"]["bytes"].as_py()
        origin = self.column("origin")[index]
        return None if origin is None else self._earlier(origin, name)

    def array(self, index: int, name: str) -> np.ndarray | None:
        """Array of a record, without reading anything else of it; None where it has none of that name."""
        found = self._item(index, "arrays", name)
        return None if found is None else _unpack(found["values"].as_py())

    def _item(self, index: int, column: str, name: str) -> Any:
        shard, row = self.locate(index)
        return next((item for item in open_shard(shard).cell(column, row) if item["name"].as_py() == name), None)

    def _earlier(self, origin: int, name: str) -> bytes | None:
        return None if self.parent is None else self.parent.lookup(origin, name)

    def __iter__(self) -> Iterator[Record]:
        return (self.record(index) for index in range(len(self)))

    def counts(self) -> tuple[int, dict[str, int]]:
        """Number of kept records, and of dropped ones by reason."""
        dropped = self.totals("dropped")
        return len(self) - dropped.total(), dict(dropped)


class UnfinishedStore(RecordStore):
    """A store that is being made: its shards up to the first one that is not there yet, and more at each `refresh`.

    Args:
        folder: with a manifest.
    """

    def __init__(self, folder: str | Path) -> None:
        self._parent = None
        Store.__init__(self, folder, "records", REMEDY)

    @property
    def complete(self) -> bool:
        """Whether it was finished when it was last looked at."""
        return bool(self.manifest.get("complete"))

    @property
    def fingerprint(self) -> str:
        """Of what makes it, since its bytes are not all there."""
        return str(self.manifest["lineage"])

    def refresh(self) -> None:
        """See the shards that were made since."""
        self.manifest = read_manifest(self.folder, self.what, self.remedy)
        self._set_shards([*self.shards, *self._described()])

    def locate(self, index: int) -> tuple[Shard, int]:
        """See `Store`; a row that is not known yet is looked for on the disk."""
        if index >= len(self):
            self.refresh()
        return super().locate(index)

    def _described(self) -> list[Shard]:
        found: list[Shard] = []
        while (shard := described_shard(self.folder, len(self.shards) + len(found), self.manifest)) is not None:
            found.append(shard)
        return found

    def _opened(self, folder: Path) -> RecordStore:
        return UnfinishedStore(folder)


def _record_of(values: Mapping[str, Any], index: int) -> Record:
    facts, history, dropped = (json.loads(values[name] or "null") for name in ("facts", "history", "dropped"))
    arrays = {item["name"]: _unpack(item["values"]) for item in values["arrays"]}
    return Record(values["id"], facts, history, dropped, {}, arrays, index)


def finished_shards(folder: Path, shards: int) -> list[Shard | None]:
    """Descriptions of the shards of a store that was begun; None for each that is still to be made."""
    manifest = read_manifest(folder, "records", REMEDY)
    return [described_shard(folder, number, manifest) for number in range(shards)]


def described_shard(folder: Path, number: int, manifest: Mapping[str, Any]) -> Shard | None:
    """Description of a shard of a store that was begun; None where it is still to be made.

    Args:
        folder: of the store.
        number: of the shard.
        manifest: of the store; while it ``adopts`` the shards of what it was before, those count, too.
    """
    path = folder / f"{shard_name(number)}.arrow"
    if not path.is_file():
        return None
    known = [manifest["fingerprint"], *filter(None, [manifest.get("adopts")])]
    return next((found for store in known if (found := read_shard(path, store, REMEDY)) is not None), None)


def remove_damaged(folder: Path, shards: int) -> list[str]:
    """Remove shards whose bytes are not those that were written, and return their file names."""
    damaged = []
    for shard in finished_shards(folder, shards):
        if shard is not None and is_suspect(shard):
            try:
                check_shard(shard)
            except StoreError:
                damaged.append(shard.path.name)
                remove_shard(shard.path)
    return damaged
