"""Who makes which shard: a lock per shard, which the system takes from a process that dies.

A lock is no part of the result: shards are moved into place as a whole, and two processes that make the same one make
the same bytes. It keeps them from doing the work twice, and from removing each other's unfinished files.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

_FOLDER = ".claims"
_PARTIAL = re.compile(r"shard-(\d+)\..*partial$")
_OLD = 3600.0
"""Seconds after which an unfinished file that belongs to no shard counts as left behind."""


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


def remove_abandoned(target: Path) -> None:
    """Remove unfinished files that nobody is at work on; those of a process that is alive stay."""
    for partial in target.glob("*.partial"):
        match = _PARTIAL.match(partial.name)
        if match is None:
            # of the manifest, which is written within milliseconds
            with suppress(FileNotFoundError):
                if not _alive(partial) or time.time() - partial.stat().st_mtime > _OLD:
                    partial.unlink()
            continue
        with claimed(target, int(match[1])) as mine:
            if mine:
                partial.unlink(missing_ok=True)


def forget_claims(target: Path) -> None:
    """Remove the locks of a store that is finished."""
    shutil.rmtree(target / _FOLDER, ignore_errors=True)


def _alive(partial: Path) -> bool:
    """Whether the process of this machine that a partial file is named after still runs."""
    owner = partial.name.removesuffix(".partial").rpartition(".")[2].partition("-")[0]
    if not owner.isdigit():
        return False
    try:
        os.kill(int(owner), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
