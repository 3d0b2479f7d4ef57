"""Shards of records on the disk: their columns, how one is written, and which of a store are finished."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from lightning_idc.data.store.shards import Shard, StoreError, check_shard, is_suspect, read_shard, remove_shard
from lightning_idc.data.store.shards import write_shard as write_rows
from lightning_idc.data.store.store import read_manifest, shard_name
from lightning_idc.synthesis.records import Record

REMEDY = (
    "run its stage again to rebuild it (of a recipe: remove the stage.json of that stage, then --resume), or check the "
    "path of the store"
)
_ROWS = 16
"""Records with images per batch of a shard: a million pixels in one row must not be held a thousandfold."""
_encode = json.JSONEncoder(ensure_ascii=False).encode


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


def unpack(data: bytes) -> np.ndarray:
    """Array of a record from the bytes of its column.

    Raises:
        StoreError: they are no array.
    """
    try:
        return np.asarray(np.load(io.BytesIO(data), allow_pickle=False))
    except (ValueError, EOFError, OSError) as error:
        raise StoreError(f"an array of a record cannot be read ({error}); {REMEDY}") from error


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
