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
    batches = [list(positions[start : start + batch_size]) for start in range(0, len(positions), batch_size)]
    if not threads:
        for indices in batches:
            yield indices, [with_decoded_images(read(index), images) for index in indices]
        return
    with ThreadPoolExecutor(threads) as pool:
        queue: deque[tuple[list[int], list[Future[Record]]]] = deque()
        for indices in batches:
            queue.append((indices, [pool.submit(with_decoded_images, read(index), images) for index in indices]))
            if len(queue) > _AHEAD:
                yield _wait_for(*queue.popleft())
        while queue:
            yield _wait_for(*queue.popleft())


def _wait_for(indices: list[int], records: list[Future[Record]]) -> tuple[list[int], list[Record]]:
    return indices, [record.result() for record in records]


def with_decoded_images(record: Record, images: Sequence[str]) -> Record:
    """Decode images of a record, which is dropped if one cannot be decoded."""
    if record.dropped is None:
        try:
            for name in images:
                record.image(name)
        except StoreError:
            raise  # a damaged store must be repaired; its records must not be dropped
        except IDCError as error:
            record.drop(UNREADABLE, str(error))
    return record
