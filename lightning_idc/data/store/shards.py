"""Shards of a store: Arrow streams that are written atomically, checked when first opened, and memory-mapped."""

from __future__ import annotations

import bisect
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from lightning_idc.data.store.manifest import ShardName
from lightning_idc.utils.errors import StoreError

OPEN_SHARDS = 128
"""Maximum number of shards that a process keeps mapped, over all stores."""
_BLOCK = 1 << 20

_checked: dict[tuple[str, str], tuple[int, int, int]] = {}
"""Inode, size and time of files checked by this process, by path and fingerprint; forked processes inherit it."""


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """File of a store.

    Args:
        path: path of the file.
        name: parsed name of the file.
        fingerprint: fingerprint of the store.
        bytes: size according to the manifest; None for a growing store.
        remedy: advice for a damaged shard, for messages.
    """

    path: Path
    name: ShardName
    fingerprint: str
    bytes: int | None = None
    remedy: str = ""

    @property
    def rows(self) -> int:
        return self.name.rows


def tensor_batch(**columns: Any) -> Any:
    """Build a record batch of named columns; an array ``(N, ...)`` of two or more dimensions is a tensor column."""
    import pyarrow as pa

    tensor = pa.FixedShapeTensorArray.from_numpy_ndarray
    arrays = {
        name: tensor(np.ascontiguousarray(value)) if isinstance(value, np.ndarray) and value.ndim > 1 else value
        for name, value in columns.items()
    }
    return pa.record_batch(arrays)


def write_shard(
    folder: Path, fingerprint: str, batches: Iterable[Any], *, table: str, part: str, schema: Any = None
) -> Shard:
    """Write a shard atomically; only one process at a time may write the same part.

    Args:
        folder: folder of the store.
        fingerprint: fingerprint of the store.
        batches: record batches; use few rows per batch if rows are large.
        table: table that the shard belongs to, lower-case letters.
        part: number or name of the shard in its table, digits and lower-case letters.
        schema: schema of the batches; that of the first batch when None.

    Raises:
        OSError: the file cannot be written.
    """
    import pyarrow as pa

    partial, rows = folder / f"{table}-{part}.partial", 0
    with partial.open("wb") as file:
        sink = _Checksum(file, fingerprint, table, part)
        writer = None if schema is None else pa.ipc.new_stream(sink, schema)
        for batch in batches:
            writer = writer or pa.ipc.new_stream(sink, batch.schema)
            writer.write_batch(batch)
            rows += batch.num_rows
        if writer is None:
            raise ValueError("a shard without rows needs a schema")
        writer.close()
        file.flush()
        os.fsync(file.fileno())  # the renamed file must be complete even after a power failure
    name = ShardName(table, part, rows, sink.of(rows))
    os.replace(partial, folder / str(name))
    return Shard(folder / str(name), name, fingerprint)


class _Checksum:
    """File-like object that computes the checksum of the bytes written to it.

    Args:
        file: open file, or None to compute the checksum only.
        fingerprint: fingerprint of the store.
        table: table of the shard.
        part: part of the shard.
    """

    def __init__(self, file: Any, fingerprint: str, table: str, part: str) -> None:
        self.file, self.state, self.closed = file, xxhash.xxh3_64(), False
        # includes the name, so that swapped, renamed and foreign shards are detected
        self.state.update(f"{fingerprint}/{table}-{part}/".encode())

    def write(self, data: Any) -> int:
        self.state.update(data)
        return 0 if self.file is None else int(self.file.write(data))

    def flush(self) -> None:
        """Do nothing: Arrow calls this after each batch, but the file is flushed once at the end."""

    def of(self, rows: int) -> str:
        state = self.state.copy()
        state.update(f"/{rows}".encode())
        return str(state.hexdigest())


def check_shard(shard: Shard, *, again: bool = False) -> None:
    """Verify the size and checksum of a shard, once per process.

    Args:
        shard: shard to check.
        again: whether to repeat the check in this process.

    Raises:
        StoreError: the file is missing or damaged.
    """
    key = str(shard.path), shard.fingerprint
    try:
        with shard.path.open("rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            stamp = status.st_ino, status.st_size, status.st_mtime_ns
            if _checked.get(key) == stamp and not again:
                return
            if shard.bytes is not None and shard.bytes != status.st_size:
                raise StoreError(f"{shard.path} has {status.st_size} bytes, expected {shard.bytes}; {shard.remedy}")
            checksum, block = _Checksum(None, shard.fingerprint, shard.name.table, shard.name.part), bytearray(_BLOCK)
            view = memoryview(block)
            while size := file.readinto(block):
                checksum.write(view[:size])
    except OSError as error:
        raise StoreError(f"{shard.path} cannot be read ({error.strerror}); {shard.remedy}") from error
    if checksum.of(shard.rows) != shard.name.checksum:
        raise StoreError(f"{shard.path} is damaged: it does not match its checksum; {shard.remedy}")
    _checked[key] = stamp


class OpenShard:
    """Memory-mapped rows of a shard; the map is closed when the object and all its rows are released.

    Args:
        batches: record batches of the stream.
        metadata: metadata of the schema.
    """

    def __init__(self, batches: Sequence[Any], metadata: Mapping[bytes, bytes]) -> None:
        self.batches, self.metadata = batches, metadata
        self.starts = [0, *accumulate(batch.num_rows for batch in batches)]
        self._tensors: dict[str, list[Any] | None] = {}

    def value(self, column: str, row: int) -> Any:
        """Return a cell of a row: a read-only view of the memory map for a tensor, a plain value for anything else."""
        number = bisect.bisect_right(self.starts, row) - 1
        if column not in self._tensors:
            self._tensors[column] = self._views(column)
        views = self._tensors[column]
        if views is not None:
            return views[number][row - self.starts[number]]
        return self.batches[number].column(column)[row - self.starts[number]].as_py()

    def scalar(self, column: str, row: int) -> Any:
        """Return a cell of a row as an Arrow scalar, without a copy."""
        number = bisect.bisect_right(self.starts, row) - 1
        return self.batches[number].column(column)[row - self.starts[number]]

    def _views(self, column: str) -> list[Any] | None:
        """Return the arrays of a tensor column, one per batch; None for other columns."""
        import pyarrow as pa

        parts = [batch.column(column) for batch in self.batches]
        tensors = all(isinstance(part, pa.FixedShapeTensorArray) for part in parts)
        return [part.to_numpy_ndarray() for part in parts] if tensors else None


@lru_cache(maxsize=OPEN_SHARDS)
def open_shard(shard: Shard) -> OpenShard:
    """Map a shard into memory after checking it; open shards are cached.

    Raises:
        StoreError: the shard is missing, damaged or cannot be mapped.
    """
    import pyarrow as pa

    check_shard(shard)
    try:
        with pa.memory_map(str(shard.path)) as file, pa.ipc.open_stream(file) as stream:
            batches = list(stream)
            for batch in batches:
                batch.validate(full=True)  # do not follow malicious offsets
    except (OSError, pa.ArrowException) as error:
        raise StoreError(f"{shard.path} cannot be mapped into memory ({error}); {shard.remedy}") from error
    if sum(batch.num_rows for batch in batches) != shard.rows:
        raise StoreError(f"{shard.path} does not have the {shard.rows} rows of its name; {shard.remedy}")
    return OpenShard(batches, stream.schema.metadata or {})
