"""Where records lie: a store of records with the images that their stage made; earlier images are looked up."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from lightning_idc.data.store.shards import Shard, StoreError, open_shard
from lightning_idc.data.store.store import Store, read_manifest
from lightning_idc.synthesis.records import Record
from lightning_idc.synthesis.shards import REMEDY, described_shard, unpack

_PLAIN = ("id", "facts", "history", "dropped", "origin")


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
        return None if found is None else unpack(found["values"].as_py())

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
    arrays = {item["name"]: unpack(item["values"]) for item in values["arrays"]}
    return Record(values["id"], facts, history, dropped, {}, arrays, index)
