"""How far a store is: a line per shard beside it, and words about the rest."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, Protocol

PROGRESS = "progress.jsonl"
_EVERY = 30
"""Seconds between lines about progress."""


class Work(Protocol):
    """What progress is made at; `engine.ShardJob` is one."""

    target: Path

    @property
    def shards(self) -> int: ...

    def pending(self) -> list[int]: ...


class Progress:
    """Says how far a store is, twice a minute at most; shards that other processes made count, too."""

    def __init__(self) -> None:
        self._began: tuple[float, int] | None = None
        self._shown = time.monotonic()

    def show(self, work: Work) -> None:
        """Say it, where it is time to.

        Args:
            work: of which one shard more was made.
        """
        now = time.monotonic()
        self._began = self._began or (now, len(work.pending()) + 1)
        if now - self._shown < _EVERY:
            return
        self._shown, left = now, len(work.pending())
        done = self._began[1] - left
        if left and done > 0:
            minutes = (now - self._began[0]) / done * left / 60
            print(f"{work.target}: {work.shards - left} of {work.shards} shards, {minutes:.0f} min left", flush=True)


def note_shard(folder: Path, number: int, records: int, seconds: float) -> None:
    """Keep the time that a shard took.

    Args:
        folder: of the store.
        number: of the shard.
        records: in it.
        seconds: of work.
    """
    entry = {"shard": number, "records": records, "seconds": round(seconds, 3), "process": os.getpid()}
    # one short write at the end of a file is not torn apart by other processes
    with (folder / PROGRESS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def rate(folder: Path) -> str:
    """Time of all processes that made a store, and records of its source per second of it."""
    try:
        lines = (folder / PROGRESS).read_text(encoding="utf-8").splitlines()
    except OSError:
        return "time unknown"
    made = [entry for line in lines if (entry := _entry(line)) is not None]
    seconds = sum(entry["seconds"] for entry in made)
    records = sum(entry["records"] for entry in made)
    return f"{seconds:.0f} s of work, {records / max(seconds, 1e-9):.3g} records per second"


def _entry(line: str) -> dict[str, Any] | None:
    """What a line says of a shard; None where a crash left a part of it."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None
