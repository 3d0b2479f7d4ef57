"""How far a store is: a line per shard beside it, and messages about the rest."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

PROGRESS = "progress.jsonl"
_INTERVAL = 30
"""Seconds between messages."""


class Progress:
    """Prints how far a store is, twice a minute at most; shards that other processes made count, too."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None
        self._shown = time.monotonic()

    def show(self, target: Path, shards: int, pending: Callable[[], Sequence[int]]) -> None:
        """Print a message where one is due.

        Args:
            target: folder of the store.
            shards: number of its shards.
            pending: gives those that are missing.
        """
        now = time.monotonic()
        if self._first is not None and now - self._shown < _INTERVAL:
            return
        missing = len(pending())
        self._first, self._shown = self._first or (now, missing), now
        done = self._first[1] - missing
        if missing and done > 0:
            minutes = (now - self._first[0]) / done * missing / 60
            print(f"{target}: {shards - missing} of {shards} shards, {minutes:.0f} min left", flush=True)


def log_shard(folder: Path, number: int, records: int, seconds: float) -> None:
    """Add the time that a shard took to the log of a store.

    Args:
        folder: folder of the store.
        number: number of the shard.
        records: number of its records.
        seconds: time that it took.
    """
    entry = {"shard": number, "records": records, "seconds": round(seconds, 3)}
    # one short write at the end of a file is not torn apart by other processes
    with (folder / PROGRESS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def rate(folder: Path) -> str:
    """Time of all processes that made a store, and records per second of it."""
    records, seconds = 0, 0.0
    with suppress(OSError, ValueError, KeyError, TypeError):  # a machine that lost power left a part of the last line
        for line in (folder / PROGRESS).read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            records, seconds = records + entry["records"], seconds + entry["seconds"]
    return f"{seconds:.0f} s of work, {records / max(seconds, 1e-9):.3g} records per second"
