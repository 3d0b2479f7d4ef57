"""Stores of records and of the images of their stage; images of earlier stages are looked up in their stores."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from lightning_idc.data.store.manifest import numbered
from lightning_idc.data.store.reader import Column, Store
from lightning_idc.data.store.shards import Shard, open_shard, write_shard
from lightning_idc.synthesis.records import Record
from lightning_idc.utils.errors import StoreError

REMEDY = (
    "remove that file and run its stage again, which rewrites it (of a recipe: remove the stage.json of that stage, "
    "then --resume), or check the path of the store"
)
RECORDS, IMAGES = "records", "images"
"""Tables of the store. Images are in separate shards, so that stages for text do not read images."""
FAILED = b"failed"
"""Metadata key of a shard: number of records dropped because the stage raised an error."""
_ROWS = 16
"""Records with images or arrays per batch of a shard, which limits the memory for large records."""
_encode = json.JSONEncoder(ensure_ascii=False).encode


class RecordSource(Protocol):
    """Protocol of sources: records by position, and a fingerprint that changes with any record."""

    @property
    def fingerprint(self) -> str: ...

    def __len__(self) -> int: ...

    def record(self, index: int) -> Record: ...


@cache
def _schemas() -> tuple[Any, Any]:
    """Build the schemas of both tables."""
    import pyarrow as pa

    text, number = pa.string(), pa.float64()
    step = {"stage": text, "settings": text, "scores": pa.list_(pa.struct({"name": text, "value": number}))}
    array = {"name": text, "dtype": text, "shape": pa.list_(pa.int64()), "data": pa.large_binary()}
    records = {
        "id": text,
        "facts": text,
        "history": pa.list_(pa.struct(step)),
        "dropped": pa.struct({"stage": text, "reason": text, "value": text, "limit": text}),
        "origin": pa.int64(),
        "arrays": pa.list_(pa.struct(array)),
    }
    image = pa.struct({"name": text, "data": pa.large_binary()})
    return pa.schema(records), pa.schema({IMAGES: pa.list_(image)})


def write_records(folder: Path, fingerprint: str, number: int, records: Sequence[Record], failed: int = 0) -> None:
    """Write the records of a shard.

    Args:
        folder: folder of the store.
        fingerprint: fingerprint of the store.
        number: number of the shard.
        records: records in order.
        failed: number of records dropped because the stage raised an error.
    """
    schema, images = _schemas()
    part = numbered(number)
    if any(record.images for record in records):
        # before the records, whose shard marks both as complete
        rows = ({IMAGES: _named(record.images)} for record in records)
        write_shard(folder, fingerprint, _batches(rows, images, _ROWS), table=IMAGES, part=part, schema=images)
    schema = schema.with_metadata({FAILED: str(failed)})
    rows_per_batch = _ROWS if any(record.arrays for record in records) else max(1, len(records))
    batches = _batches(map(_row, records), schema, rows_per_batch)
    write_shard(folder, fingerprint, batches, table=RECORDS, part=part, schema=schema)


def _batches(rows: Iterator[dict[str, Any]], schema: Any, size: int) -> Iterator[Any]:
    import pyarrow as pa

    chunk: list[dict[str, Any]] = []
    for row in rows:
        chunk.append(row)
        if len(chunk) == size:
            yield pa.RecordBatch.from_pylist(chunk, schema=schema)
            chunk = []
    if chunk:
        yield pa.RecordBatch.from_pylist(chunk, schema=schema)


def _named(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"name": name, "data": data} for name, data in values.items()]


def _row(record: Record) -> dict[str, Any]:
    dropped = record.dropped
    return {
        "id": record.id,
        "facts": _encode(record.facts),
        "history": [_step(entry) for entry in record.history],
        "dropped": None if dropped is None else {**dropped, "value": _encode(dropped["value"])},
        "origin": record.origin,
        "arrays": [
            {"name": name, "dtype": values.dtype.str, "shape": values.shape, "data": values.tobytes()}
            for name, values in record.arrays.items()
        ],
    }


def _step(entry: Mapping[str, Any]) -> dict[str, Any]:
    settings = {name: value for name, value in entry.items() if name not in ("stage", "scores")}
    scores = [{"name": name, "value": value} for name, value in entry.get("scores", {}).items()]
    return {"stage": entry["stage"], "settings": _encode(settings), "scores": scores}


def record_of(row: Mapping[str, Any], index: int) -> Record:
    """Build a record from a row of the store, without its images.

    Args:
        row: plain values by column.
        index: position of the row, stored as the origin of the record.
    """
    history = [
        {
            "stage": step["stage"],
            **json.loads(step["settings"]),
            "scores": {score["name"]: score["value"] for score in step["scores"]},
        }
        for step in row["history"]
    ]
    dropped = row["dropped"]
    if dropped is not None:
        dropped = {**dropped, "value": json.loads(dropped["value"])}
    arrays = {array["name"]: _array(array) for array in row["arrays"]}
    return Record(row["id"], json.loads(row["facts"]), history, dropped, {}, arrays, index)


def _array(stored: Mapping[str, Any]) -> np.ndarray:
    try:
        return np.frombuffer(stored["data"], np.dtype(stored["dtype"])).reshape(stored["shape"]).copy()
    except (ValueError, TypeError) as error:
        raise StoreError(f"array {stored['name']!r} of a record cannot be read ({error}); {REMEDY}") from error


def failed_in(shard: Shard) -> int:
    """Read the number of records in a shard that were dropped because the stage raised an error."""
    return int(open_shard(shard).metadata.get(FAILED, b"0"))


class RecordStore(Store):
    """Finished store of a stage, with records read one at a time from memory-mapped shards.

    Args:
        folder: folder of a finished store.

    Raises:
        StoreError: the folder does not contain a finished store of records, or a shard is missing.
    """

    def __init__(self, folder: str | Path) -> None:
        super().__init__(folder, "records", REMEDY)
        self.rows = self.table(RECORDS)
        self._images = {shard.name.part: shard for shard in self.table(IMAGES).shards}

    @cached_property
    def parent(self) -> RecordStore | None:
        """Source store of the records, which contains their earlier images; None for the first store.

        Raises:
            StoreError: the source store is missing, or another store is in its folder.
        """
        source = self.manifest.notes.get("source")
        if source is None:
            return None
        parent = RecordStore((self.folder / str(source)).resolve())
        if parent.fingerprint != self.manifest.identity.get("source"):
            raise StoreError(f"{self.folder} was made from other records than those of {parent.folder}; {REMEDY}")
        return parent

    @property
    def stage(self) -> str:
        """Name of the stage that wrote the records."""
        return str(self.manifest.identity["stage"]).rpartition(".")[2]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Record]:
        return (self.record(index) for index in range(len(self)))

    def column(self, name: str) -> Column:
        """Return one column of the records, indexed by position."""
        return self.rows.column(name)

    def record(self, index: int) -> Record:
        """Read a record; its images stay encoded until used."""
        record = self._record(index)
        shard, row = self.rows.locate(index)
        images = self._images.get(shard.name.part)
        record.images = {item["name"]: item["data"] for item in open_shard(images).value(IMAGES, row)} if images else {}
        origin = self.column("origin")[index]
        record.inherit = None if origin is None else partial(self._earlier, origin)
        return record

    def linked(self, index: int) -> Record:
        """Read a record for a later stage; its images are looked up in this store when used."""
        record = self._record(index)
        record.inherit = partial(self.lookup, index)
        return record

    def lookup(self, index: int, name: str) -> bytes | None:
        """Look up an encoded image of a record or of its origin; None if neither has it."""
        shard, row = self.rows.locate(index)
        images = self._images.get(shard.name.part)
        data = None if images is None else _item(open_shard(images).scalar(IMAGES, row), name)
        if data is not None:
            return bytes(data["data"].as_py())
        origin = self.column("origin")[index]
        return None if origin is None else self._earlier(origin, name)

    def array(self, index: int, name: str) -> np.ndarray | None:
        """Read only an array of a record; None if it has no array of that name."""
        shard, row = self.rows.locate(index)
        stored = _item(open_shard(shard).scalar("arrays", row), name)
        return None if stored is None else _array(stored.as_py())

    def counts(self) -> tuple[int, dict[str, int]]:
        """Count kept records, and dropped records by reason."""
        reasons: Counter[str] = Counter()
        for batch in self.rows.batches():
            reasons.update(row["reason"] for row in batch.column("dropped").to_pylist() if row is not None)
        return len(self) - reasons.total(), dict(reasons)

    def _record(self, index: int) -> Record:
        shard, row = self.rows.locate(index)
        opened = open_shard(shard)
        names = ("id", "facts", "history", "dropped", "arrays")
        return record_of({name: opened.value(name, row) for name in names}, index)

    def _earlier(self, origin: int, name: str) -> bytes | None:
        return None if self.parent is None else self.parent.lookup(origin, name)


def _item(scalars: Any, name: str) -> Any:
    return next((item for item in scalars if item["name"].as_py() == name), None)
