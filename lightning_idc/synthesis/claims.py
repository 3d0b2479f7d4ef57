"""Who makes which shard: a lock per shard, which the system takes from a process that dies.

A lock is not part of the result: shards are moved into place as a whole, and two processes that make the same one make
the same bytes. It keeps them from doing the work twice.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

_FOLDER = ".claims"


@contextmanager
def claimed(target: Path, number: int) -> Iterator[bool]:
    """Hold shard ``number`` of a store; yields whether it could be had at once.

    Args:
        target: folder of the store.
        number: of the shard.
    """
    folder = target / _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / f"{number:05}.lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def forget_claims(target: Path) -> None:
    """Remove the locks of a store that is finished."""
    shutil.rmtree(target / _FOLDER, ignore_errors=True)
