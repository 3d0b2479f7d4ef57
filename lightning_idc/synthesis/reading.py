"""Read the records of a shard and decode their images ahead of the running stage."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from lightning_idc.synthesis.records import UNREADABLE, Record
from lightning_idc.utils.errors import IDCError, StoreError

_AHEAD = 2
"""Number of batches that are read ahead."""


def read_ahead(
    positions: range, batch_size: int, read: Callable[[int], Record], images: Sequence[str], threads: int
) -> Iterator[tuple[list[int], list[Record]]]:
    """Yield batches of positions and records, in order.

    Uses threads rather than processes: decoders release the GIL, and tensors need no transfer between processes, which
    takes a file descriptor and shared memory each.

    Args:
        positions: positions of the records.
        batch_size: number of records per batch.
        read: function that returns the record at a position; called in this thread only.
        images: names of the images to decode.
        threads: number of decoding threads; 0 to decode in this thread.
    """
    parts = [list(positions[start : start + batch_size]) for start in range(0, len(positions), batch_size)]
    if not threads:
        for part in parts:
            yield part, [decoded(read(index), images) for index in part]
        return
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[tuple[list[int], list[Future[Record]]]] = deque()
        for part in parts:
            waiting.append((part, [pool.submit(decoded, read(index), images) for index in part]))
            if len(waiting) > _AHEAD:
                yield _result(*waiting.popleft())
        while waiting:
            yield _result(*waiting.popleft())


def _result(part: list[int], records: list[Future[Record]]) -> tuple[list[int], list[Record]]:
    return part, [record.result() for record in records]


def decoded(record: Record, images: Sequence[str]) -> Record:
    """Decode images of a record, which is dropped if one cannot be decoded."""
    if record.dropped is None:
        try:
            for name in images:
                record.image(name)
        except StoreError:
            raise  # a damaged store must be repaired rather than its records dropped
        except IDCError as error:
            record.drop(UNREADABLE, str(error))
    return record
