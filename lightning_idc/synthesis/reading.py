"""Records of a shard with their images decoded, read ahead of the stage that is at work."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from lightning_idc.synthesis.records import UNREADABLE, Record
from lightning_idc.utils.errors import IDCError, StoreError

_AHEAD = 2
"""Batches that are read while one is at work."""


def read_ahead(
    positions: range, batch_size: int, read: Callable[[int], Record], images: Sequence[str], threads: int
) -> Iterator[tuple[list[int], list[Record]]]:
    """Positions and records, batch by batch, in order.

    Threads and not processes: decoders release Python's lock, and no tensor has to cross to another process, which
    costs a file descriptor and shared memory each.

    Args:
        positions: of the records.
        batch_size: records per step.
        read: gives the record at a position; called by this thread alone.
        images: names of those that are decoded.
        threads: that decode; 0 to decode when a batch is due.
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
    """The record with images decoded; dropped where one cannot be."""
    if record.dropped is None:
        try:
            for name in images:
                record.image(name)
        except StoreError:
            raise  # of an earlier stage: its shard is made again, and no record is lost
        except IDCError as error:
            record.drop(UNREADABLE, str(error))
    return record
