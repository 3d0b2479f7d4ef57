"""Shards of a store: Arrow streams with a sealed description beside each, hashed when they are first opened.

``NAME.arrow`` is an Arrow stream as ``datasets.Dataset.from_file`` reads it. ``NAME.json`` holds one line per segment,
with its bytes, rows and digest and a digest of the line itself; what no line describes was never written.
"""

from __future__ import annotations

import bisect
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from lightning_idc.utils.errors import DataError
from lightning_idc.utils.files import DIGEST_BYTES, atomic_write, file_digest, seal, unseal

OPEN_SHARDS = 64
"""Shards that a process keeps mapped at once, of all stores together."""

_hashed: dict[str, tuple[tuple[int, ...], set[tuple[int, str]]]] = {}
"""By path: the file as it was when it was hashed, and the segments that were. A forked worker inherits it."""


class StoreError(DataError):
    """A store that is missing, damaged, of another version or made of something else."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A range of a shard's bytes that was written at once.

    Args:
        start: first byte.
        end: byte after the last.
        rows: in it.
        digest: of the bytes.
        keys: names of the rows, for stores that look rows up by name.
        about: whatever else its writer says of it, plain values.
    """

    start: int
    end: int
    rows: int
    digest: str
    keys: tuple[str, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Shard:
    """What the description of a shard says.

    Args:
        path: of the Arrow file.
        segments: in order.
        growing: whether bytes may follow the last segment, because a process appends to the file.
        remedy: what to do when the shard is damaged, for messages.
    """

    path: Path
    segments: tuple[Segment, ...]
    growing: bool = False
    remedy: str = ""

    @property
    def rows(self) -> int:
        return sum(segment.rows for segment in self.segments)

    @property
    def end(self) -> int:
        """Bytes that belong to it."""
        return self.segments[-1].end

    @property
    def keys(self) -> list[str]:
        return [key for segment in self.segments for key in segment.keys]

    @property
    def about(self) -> Mapping[str, Any]:
        """What its writer says of it."""
        return self.segments[0].about


def read_shard(path: Path, store: str, remedy: str = "") -> Shard | None:
    """Description of a shard, up to the first line that is damaged; None where none holds.

    Args:
        path: of the Arrow file, which is not looked at.
        store: fingerprint of the store that it should belong to.
        remedy: what to do when the shard is damaged.
    """
    try:
        lines = path.with_suffix(".json").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return None
    segments: list[Segment] = []
    growing = False
    for line in lines:
        found = unseal(line)
        begins = segments[-1].end if segments else 0
        if found is None or [found.get(key) for key in ("shard", "store", "start")] != [path.stem, store, begins]:
            break
        growing = found["growing"]
        segments.append(
            Segment(
                begins, begins + found["bytes"], found["rows"], found["digest"], tuple(found["keys"]), found["about"]
            )
        )
    return Shard(path, tuple(segments), growing, remedy) if segments else None


def columns(**values: Any) -> Any:
    """A record batch of columns by name; an array ``(N, ...)`` of two or more dimensions becomes a tensor column."""
    import pyarrow as pa

    tensor = pa.FixedShapeTensorArray.from_numpy_ndarray
    arrays = {
        name: tensor(np.ascontiguousarray(value)) if isinstance(value, np.ndarray) and value.ndim > 1 else value
        for name, value in values.items()
    }
    return pa.record_batch(arrays)


def write_shard(
    path: Path,
    store: str,
    batches: Iterable[Any],
    schema: Any = None,
    keys: Sequence[str] = (),
    about: Mapping[str, Any] | None = None,
    lazy: str | None = None,
) -> Shard:
    """Write a shard and its description, each as a whole or not at all; an older one in its place is replaced.

    Args:
        path: of the Arrow file.
        store: fingerprint of the store that it belongs to.
        batches: record batches; few rows each, so that a row of many pixels is not held a thousandfold.
        schema: of the batches; that of the first one when None.
        keys: names of the rows.
        about: plain values kept in the description; it may be filled while the batches are drawn.
        lazy: the last column, where its bytes are hashed when it is first read and not when the shard is opened.
    """
    made: list[Segment] = []

    def write(partial: Path) -> None:
        with partial.open("wb") as file:
            if lazy is None:
                made.append(_write_segment(file, batches, schema, 0))
            else:
                made.extend(_write_apart(file, batches, schema, lazy))

    path.with_suffix(".json").unlink(missing_ok=True)
    atomic_write(path, write)
    made[0] = replace(made[0], keys=tuple(keys), about=dict(about or {}))
    lines = (_line(path, store, segment, growing=False) for segment in made)
    atomic_write(path.with_suffix(".json"), b"".join(lines))
    return Shard(path, tuple(made))


def adopt_shard(path: Path, store: str, successor: str) -> None:
    """Let a shard belong to the store that another one has become; nothing is done where it does already.

    Args:
        path: of the Arrow file, which stays as it is.
        store: fingerprint of the store that it belongs to.
        successor: fingerprint of the one that it shall belong to.
    """
    shard = read_shard(path, store)
    if shard is not None:
        lines = [_line(path, successor, segment, shard.growing) for segment in shard.segments]
        atomic_write(path.with_suffix(".json"), b"".join(lines))


def append_segment(shard: Shard, store: str, batch: Any, keys: Sequence[str] = ()) -> Shard | None:
    """Append rows to a shard of this process, which may be new; None where the file is not as it was left.

    What a killed process appended last is there as a whole or not at all, since its line is written after it.
    """
    begins = shard.end if shard.segments else 0
    with shard.path.open("ab") as file:
        if file.tell() != begins:
            return None
        segment = replace(_write_segment(file, [batch], None, begins), keys=tuple(keys))
    with shard.path.with_suffix(".json").open("ab") as side:
        side.write(_line(shard.path, store, segment, growing=True))
    # what this process has just written need not be read back
    earlier = _hashed[str(shard.path)][1] if begins else set()
    _hashed[str(shard.path)] = _stamp(shard.path.stat()), {*earlier, (segment.start, segment.digest)}
    return replace(shard, segments=(*shard.segments, segment))


def _write_segment(file: BinaryIO, batches: Iterable[Any], schema: Any, start: int) -> Segment:
    """Write the messages of an Arrow stream, which begins with its schema, and hash them on their way."""
    found, size, rows = hashlib.blake2b(digest_size=DIGEST_BYTES), 0, 0

    def put(message: Any) -> None:
        nonlocal size
        found.update(message)
        file.write(message)
        size += len(message)

    if schema is not None and start == 0:
        put(schema.serialize())
    for batch in batches:
        if start + size == 0:
            put(batch.schema.serialize())
        put(batch.serialize())
        rows += batch.num_rows
    return Segment(start, start + size, rows, found.hexdigest())


def _write_apart(file: BinaryIO, batches: Iterable[Any], schema: Any, lazy: str) -> list[Segment]:
    """As `_write_segment`, but for each batch its last column in a segment of its own."""
    import pyarrow as pa

    found: list[Segment] = []

    def put(parts: Iterable[Any], rows: int, **about: str) -> None:
        start, hashed = (found[-1].end if found else 0), hashlib.blake2b(digest_size=DIGEST_BYTES)
        for part in parts:
            hashed.update(part)
            file.write(part)
        found.append(Segment(start, file.tell(), rows, hashed.hexdigest(), about=about))

    head = schema.serialize()
    for batch in batches:
        message = batch.serialize()
        column = pa.ipc.read_record_batch(message, schema).column(lazy)
        # its buffers are the last ones of the message
        starts = (buffer.address for buffer in column.buffers() if buffer is not None and buffer.size)
        cut = min(starts) - message.address
        put([head, message.slice(0, cut)], batch.num_rows)
        put([message.slice(cut)], 0, lazy=lazy)
        head = b""
    return found


def _line(path: Path, store: str, segment: Segment, growing: bool) -> bytes:
    said = {
        "shard": path.stem,
        "store": store,
        "start": segment.start,
        "bytes": segment.end - segment.start,
        "rows": segment.rows,
        "digest": segment.digest,
        "keys": list(segment.keys),
        "about": segment.about,
        "growing": growing,
    }
    return f"{seal(said)}\n".encode()


def _stamp(stat: os.stat_result) -> tuple[int, ...]:
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def is_suspect(shard: Shard) -> bool:
    """Whether a shard's file has another size than it was written with, or was changed after its description."""
    try:
        stat, side = shard.path.stat(), shard.path.with_suffix(".json").stat()
    except OSError:
        return True
    cut = stat.st_size < shard.end if shard.growing else stat.st_size != shard.end
    return cut or stat.st_mtime_ns > side.st_mtime_ns


def check_shard(shard: Shard, again: bool = False, lazy: bool = True) -> None:
    """Hash what this process has not hashed yet of a shard.

    Args:
        shard: to check.
        again: hash everything, whatever was hashed before.
        lazy: also a column that is hashed when it is read.

    Raises:
        StoreError: the file is missing, cut short, or its bytes are not those that were written.
    """
    path = shard.path
    try:
        stat = path.stat()
    except OSError as error:
        raise StoreError(f"{path} is missing ({error.strerror}); {shard.remedy}") from error
    if stat.st_size < shard.end or (stat.st_size != shard.end and not shard.growing):
        raise StoreError(f"{path} has {stat.st_size} bytes, {shard.end} were written; {shard.remedy}")
    known = _hashed.get(str(path))
    if known is None or known[0] != _stamp(stat) or again:
        known = _hashed[str(path)] = _stamp(stat), set()
    for segment in shard.segments:
        if (segment.start, segment.digest) in known[1] or (segment.about.get("lazy") and not lazy):
            continue
        try:
            found = file_digest(path, segment.start, segment.end)
        except OSError as error:
            raise StoreError(f"{path} cannot be read ({error}); check the disk and its permissions") from error
        if found != segment.digest:
            with suppress(OSError):
                os.utime(path)  # newer than its description: whoever checks by time alone finds it, too
            raise StoreError(f"{path} is damaged: its bytes are not those that were written; {shard.remedy}")
        known[1].add((segment.start, segment.digest))


def remove_shard(path: Path) -> None:
    """Remove a shard and its description, so that it counts as never written."""
    for file in (path.with_suffix(".json"), path):
        with suppress(FileNotFoundError):
            file.unlink()


class OpenShard:
    """The rows of a shard over its memory map, which is closed when neither this nor a row of it is in use.

    Args:
        batches: of the stream.
        shard: that they are of.
    """

    def __init__(self, batches: Sequence[Any], shard: Shard) -> None:
        self.batches, self.shard = batches, shard
        # hashed when it is read
        self._lazy = next((segment.about["lazy"] for segment in shard.segments if "lazy" in segment.about), None)
        self.starts = [0, *accumulate(batch.num_rows for batch in batches)]
        self._tensors: dict[str, list[Any] | None] = {}

    def value(self, name: str, row: int) -> Any:
        """Cell of a row: a read-only view of the map for a tensor, a plain value for anything else."""
        self._verify(name)
        batch = bisect.bisect_right(self.starts, row) - 1
        try:
            views = self._tensors[name]
        except KeyError:
            views = self._tensors[name] = self._views(name)
        if views is not None:
            return views[batch][row - self.starts[batch]]
        return self.batches[batch].column(name)[row - self.starts[batch]].as_py()

    def row(self, row: int, names: Sequence[str]) -> dict[str, Any]:
        """Cells of a row by column as plain values; nothing of the other columns is read."""
        for name in names:
            self._verify(name)
        number = bisect.bisect_right(self.starts, row) - 1
        batch, place = self.batches[number], row - self.starts[number]
        return {name: batch.column(name)[place].as_py() for name in names}

    def cell(self, name: str, row: int) -> Any:
        """Cell of a row as Arrow has it, of which nothing is copied yet."""
        self._verify(name)
        batch = bisect.bisect_right(self.starts, row) - 1
        return self.batches[batch].column(name)[row - self.starts[batch]]

    def _verify(self, name: str) -> None:
        if name == self._lazy:
            check_shard(self.shard)
            self._lazy = None

    def _views(self, name: str) -> list[Any] | None:
        """Per batch the rows of a column, where that copies nothing."""
        import pyarrow as pa

        parts = [batch.column(name) for batch in self.batches]
        if all(isinstance(part, pa.FixedShapeTensorArray) for part in parts):
            return [part.to_numpy_ndarray() for part in parts]
        return [[None] * len(part) for part in parts] if all(part.null_count == len(part) for part in parts) else None


@lru_cache(maxsize=OPEN_SHARDS)
def open_shard(shard: Shard) -> OpenShard:
    """A shard mapped into memory, hashed first where this process has not done so.

    Raises:
        StoreError: it is missing, damaged or cannot be mapped.
    """
    import pyarrow as pa

    check_shard(shard, lazy=False)
    try:
        with pa.memory_map(str(shard.path)) as file:
            return OpenShard(list(pa.ipc.open_stream(file.read_buffer(shard.end))), shard)
    except (OSError, pa.ArrowException) as error:
        raise StoreError(
            f"{shard.path} cannot be mapped into memory ({error}); its bytes are those that were written, so look at "
            "the limits of this machine (ulimit -v, vm.max_map_count)"
        ) from error
