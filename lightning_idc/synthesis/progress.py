"""Progress of a store: a log with a line per shard, and messages with the remaining time."""

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
    """Prints the progress of a store at most twice a minute, including shards of other processes."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None
        self._last_message = time.monotonic()

    def show(self, target: Path, shards: int, pending: Callable[[], Sequence[int]]) -> None:
        """Print a message if the last one is old enough.

        Args:
            target: folder of the store.
            shards: total number of shards.
            pending: function that lists the missing shards.
        """
        now = time.monotonic()
        if self._first is not None and now - self._last_message < _INTERVAL:
            return
        missing = len(pending())
        self._first, self._last_message = self._first or (now, missing), now
        done = self._first[1] - missing
        if missing and done > 0:
            minutes = (now - self._first[0]) / done * missing / 60
            print(f"{target}: {shards - missing} of {shards} shards, {minutes:.0f} min left", flush=True)


def log_shard(folder: Path, number: int, records: int, seconds: float) -> None:
    """Append the processing time of a shard to the log of a store.

    Args:
        folder: folder of the store.
        number: number of the shard.
        records: number of records in the shard.
        seconds: processing time.
    """
    entry = {"shard": number, "records": records, "seconds": round(seconds, 3)}
    # a short append is atomic, so processes do not interleave
    with (folder / PROGRESS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def format_rate(folder: Path) -> str:
    """Format the total processing time of a store and the records per second."""
    records, seconds = 0, 0.0
    with suppress(OSError, ValueError, KeyError, TypeError):  # a power cut may truncate the last line
        for line in (folder / PROGRESS).read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            records, seconds = records + entry["records"], seconds + entry["seconds"]
    return f"{seconds:.0f} s of processing, {records / max(seconds, 1e-9):.3g} records per second"
