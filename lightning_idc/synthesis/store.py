"""Where records lie: Arrow shards with a digest each, and a manifest that says what made them.

manifest.json         stage, settings, source, fingerprint; complete once every shard is there
shard-00000.arrow     written beside its place and moved there
shard-00000.json      digest and counts; a shard without it counts as never written
"""

from __future__ import annotations

import bisect
import hashlib
import io
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from lightning_idc.core.types import PairError
from lightning_idc.synthesis.records import Record

FORMAT = 1
MANIFEST = "manifest.json"
_WHOLE_FILE = 1 << 20


class RecordSource(Protocol):
    """Records by position, and a fingerprint that changes when any of them does."""

    @property
    def fingerprint(self) -> str: ...

    def __len__(self) -> int: ...

    def record(self, index: int) -> Record: ...


def shard_name(number: int) -> str:
    """File name of a shard without its ending."""
    return f"shard-{number:05}"


def write_shard(folder: Path, number: int, records: Sequence[Record]) -> None:
    """Write a shard and its digest, each as a whole or not at all.

    Args:
        folder: of the store.
        number: of the shard; an older one in its place is replaced.
        records: in order.
    """
    target, partial = folder / f"{shard_name(number)}.arrow", folder / f"{shard_name(number)}.{os.getpid()}.partial"
    side = target.with_suffix(".json")
    side.unlink(missing_ok=True)
    _write_arrow(partial, records)
    _settle(partial, target)
    reasons = Counter(record.dropped["reason"] for record in records if record.dropped is not None)
    about = {
        "digest": digest(target),
        "records": len(records),
        "kept": len(records) - reasons.total(),
        "dropped": dict(reasons),
    }
    save_manifest(side, about)


def save_manifest(target: Path, value: dict[str, Any]) -> None:
    """Write plain values as JSON, as a whole or not at all."""
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    partial.write_text(json.dumps(value, indent=1, ensure_ascii=False), encoding="utf-8")
    _settle(partial, target)


def digest(path: Path) -> str:
    """Hash of a file."""
    seen = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(_WHOLE_FILE):
            seen.update(block)
    return seen.hexdigest()


def _settle(partial: Path, target: Path) -> None:
    with partial.open("rb") as file:
        os.fsync(file.fileno())  # a power cut must not leave a good name on an empty file
    os.replace(partial, target)


def _write_arrow(path: Path, records: Sequence[Record]) -> None:
    from datasets import Features, Image, Value
    from datasets.arrow_writer import ArrowWriter

    features = Features(
        {
            "id": Value("string"),
            "facts": Value("string"),
            "history": Value("string"),
            "dropped": Value("string"),
            "origin": Value("int64"),
            "images": [{"name": Value("string"), "image": Image(decode=False)}],
            "arrays": [{"name": Value("string"), "values": Value("binary")}],
        }
    )
    # few rows per batch: a million pixels in one row must not be held a thousandfold
    with ArrowWriter(path=str(path), features=features, writer_batch_size=16) as writer:
        for record in records:
            writer.write(
                {
                    "id": record.id,
                    "facts": json.dumps(record.facts, ensure_ascii=False),
                    "history": json.dumps(record.history, ensure_ascii=False),
                    "dropped": None if record.dropped is None else json.dumps(record.dropped, ensure_ascii=False),
                    "origin": record.origin,
                    "images": [
                        {"name": name, "image": {"bytes": data, "path": None}} for name, data in record.images.items()
                    ],
                    "arrays": [{"name": name, "values": _pack(values)} for name, values in record.arrays.items()],
                }
            )
        writer.finalize()


def _pack(values: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, values, allow_pickle=False)
    return stream.getvalue()


def _unpack(data: bytes) -> np.ndarray:
    return np.asarray(np.load(io.BytesIO(data), allow_pickle=False))


class RecordStore:
    """Records that a stage made, read one at a time from memory-mapped shards.

    Args:
        folder: with a complete manifest.

    Raises:
        PairError: the folder holds no finished store.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.manifest = read_manifest(self.folder)
        if not self.manifest.get("complete"):
            raise PairError(f"{self.folder} was not finished; run its stage again, which continues where it stopped")
        self.shards = [shard_about(self.folder, number) for number in range(self.manifest["shards"])]
        absent = [number for number, about in enumerate(self.shards) if about is None]
        if absent:
            raise PairError(
                f"{self.folder} lacks {shard_name(absent[0])} ({len(absent)} of {len(self.shards)} shards); "
                "run its stage again to rebuild what is missing"
            )
        self._ends = list(accumulate(about["records"] for about in self.shards if about is not None))
        self._open: dict[tuple[int, tuple[str, ...]], Any] = {}
        self._parent: RecordStore | None = None

    def verify(self) -> None:
        """Look through the bytes of all shards, and of the stores that they were made from.

        Raises:
            PairError: those of a shard are not those that were written.
        """
        damaged = damaged_shards(self.folder, len(self.shards))
        if damaged:
            raise PairError(
                f"{damaged[0]} is damaged ({len(damaged)} of {len(self.shards)} shards): its bytes are not those that "
                "were written; run its stage again to rebuild it (of a recipe: remove the stage.json of that stage, "
                "then --resume)"
            )
        if self.parent is not None:
            self.parent.verify()

    def __getstate__(self) -> dict[str, Any]:
        # workers map the files themselves
        return {**self.__dict__, "_open": {}}

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def fingerprint(self) -> str:
        """Changes with what made the records and with every byte of them."""
        digests = [about["digest"] for about in self.shards if about is not None]
        return hashlib.sha256(json.dumps([self.manifest["fingerprint"], digests]).encode()).hexdigest()

    @property
    def parent(self) -> RecordStore | None:
        """Store that the records were made from, which holds their earlier images; None for the first one."""
        if self._parent is None and self.manifest["source"] is not None:
            self._parent = RecordStore((self.folder / self.manifest["source"]).resolve())
        return self._parent

    def record(self, index: int) -> Record:
        """One record; its images stay encoded until they are asked for."""
        values = self._cells(index)
        dropped = values["dropped"]
        record = Record(
            values["id"],
            json.loads(values["facts"]),
            json.loads(values["history"]),
            None if dropped is None else json.loads(dropped),
            {item["name"]: item["image"]["bytes"] for item in values["images"]},
            {item["name"]: _unpack(item["values"]) for item in values["arrays"]},
            index,
        )
        if values["origin"] is not None:
            record.inherit = partial(self._earlier, values["origin"])
        return record

    def lookup(self, index: int, name: str) -> bytes | None:
        """Encoded image of a record, or of the one that it was made from; None where neither has it."""
        values = self._cells(index, "images", "origin")
        data = next((item["image"]["bytes"] for item in values["images"] if item["name"] == name), None)
        return data if data is not None or values["origin"] is None else self._earlier(values["origin"], name)

    def array(self, index: int, name: str) -> np.ndarray | None:
        """Array of a record, without reading anything else of it; None where it has none of that name."""
        found = (item for item in self._cells(index, "arrays")["arrays"] if item["name"] == name)
        return next((_unpack(item["values"]) for item in found), None)

    def _earlier(self, origin: int, name: str) -> bytes | None:
        return None if self.parent is None else self.parent.lookup(origin, name)

    def __iter__(self) -> Iterator[Record]:
        return (self.record(index) for index in range(len(self)))

    def counts(self) -> tuple[int, dict[str, int]]:
        """Number of kept records, and of dropped ones by reason."""
        reasons: Counter[str] = Counter()
        for about in self.shards:
            if about is not None:
                reasons.update(about["dropped"])
        return len(self) - reasons.total(), dict(reasons)

    def _cells(self, index: int, *columns: str) -> dict[str, Any]:
        """Values of a record, of all columns where none is named."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        shard = bisect.bisect_right(self._ends, index)
        return self._rows(shard, columns)[index - (self._ends[shard - 1] if shard else 0)]

    def _rows(self, shard: int, columns: tuple[str, ...]) -> Any:
        if (shard, columns) not in self._open:
            from datasets import Dataset
            from pyarrow import ArrowException

            path = self.folder / f"{shard_name(shard)}.arrow"
            try:
                rows = Dataset.from_file(str(path))
                self._open[shard, columns] = rows.select_columns(list(columns)) if columns else rows
            except (OSError, ArrowException, ValueError) as error:
                raise PairError(
                    f"the shard {path} cannot be read ({error}); run its stage again to rebuild it"
                ) from error
        return self._open[shard, columns]


def read_manifest(folder: Path) -> dict[str, Any]:
    """What a store says of itself.

    Raises:
        PairError: there is none, or it is of another version.
    """
    path = folder / MANIFEST
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PairError(f"{folder} holds no records: there is no {MANIFEST}; check the path of the store") from None
    except (OSError, ValueError) as error:
        raise PairError(f"{path} cannot be read ({error}); remove the folder and run its stage again") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise PairError(f"{path} is no manifest of format {FORMAT}; remove the folder and run its stage again")
    return found


def shard_about(folder: Path, number: int) -> dict[str, Any] | None:
    """Digest and counts of a shard; None where it was not finished."""
    side = folder / f"{shard_name(number)}.json"
    if not side.with_suffix(".arrow").is_file():
        return None
    try:
        about = json.loads(side.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return about if isinstance(about, dict) and {"digest", "records", "kept", "dropped"} <= set(about) else None


def damaged_shards(folder: Path, shards: int) -> list[Path]:
    """Finished shards whose bytes are not those that were written."""
    damaged = []
    for number in range(shards):
        about, path = shard_about(folder, number), folder / f"{shard_name(number)}.arrow"
        if about is not None and digest(path) != about["digest"]:
            damaged.append(path)
    return damaged


def remove_damaged(folder: Path, shards: int) -> list[str]:
    """Remove half-written files and shards whose bytes are not those that were written; return the shards' names."""
    for unfinished in folder.glob("*.partial"):
        unfinished.unlink(missing_ok=True)
    damaged = damaged_shards(folder, shards)
    for path in damaged:
        with suppress(FileNotFoundError):
            path.with_suffix(".json").unlink()
            path.unlink()
    return [path.name for path in damaged]
