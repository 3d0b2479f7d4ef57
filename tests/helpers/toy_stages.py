"""Stages and sources so small that a test can predict their results."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer

from lightning_idc.synthesis.models.base import TextModel
from lightning_idc.synthesis.pipeline import Records
from lightning_idc.synthesis.records import Record, record_generator
from lightning_idc.synthesis.stages import PipelineStage
from lightning_idc.synthesis.store import RecordStore


class Numbers:
    """Records 0 to count - 1 with an image each.

    Args:
        count: number of records.
        broken: indices of the records with an invalid image.
    """

    def __init__(self, count: int, broken: Sequence[int] = ()) -> None:
        self.count, self.broken = count, set(broken)

    @property
    def fingerprint(self) -> str:
        return f"numbers {self.count} {sorted(self.broken)}"

    def __len__(self) -> int:
        return self.count

    def record(self, index: int) -> Record:
        record = Record(f"n{index:03}", {"number": index})
        if index in self.broken:
            record.images["picture"] = b"GIF89a and then nothing"
        else:
            record.put("picture", torch.full((3, 4, 5), index % 256, dtype=torch.uint8))
        return record


class Shade(PipelineStage):
    """Drops multiples of seven, splits multiples of five in two, and adds a random offset to the images of the others.

    Args:
        most: largest offset.
        pause: seconds of sleep per batch, during which a test can kill the process.
        seed: see `PipelineStage`.
        wait_for: file that all records but the first twelve wait for, so that a kill hits busy workers.
    """

    reads = ("picture",)

    def __init__(self, most: int = 9, pause: float = 0.0, seed: int = 0, wait_for: str | None = None) -> None:
        super().__init__(seed)
        self.most, self.pause, self.wait_for = most, pause, wait_for

    def settings(self) -> dict[str, int]:
        return {"most": self.most}

    def process(self, records: list[Record]) -> list[Record | list[Record]]:
        time.sleep(self.pause)
        while self.wait_for and records[-1].facts["number"] >= 12 and not Path(self.wait_for).exists():
            time.sleep(0.05)
        return [self._one(record) for record in records]

    def _one(self, record: Record) -> Record | list[Record]:
        offset = int(record_generator(self.seed, record.id).integers(1, self.most + 1))
        record.score(offset=offset)
        if record.facts["number"] % 7 == 0:
            record.drop("multiple of seven", record.facts["number"], "others")
            return record
        if record.facts["number"] % 5 == 0:
            return [record.child("a"), record.child("b")]
        record.put("shaded", (record.image("picture").int() + offset).clamp(max=255).to(torch.uint8))
        return record


def run_under_trainer(
    stage: PipelineStage, source: Any, target: Path, trainer: Mapping[str, Any] | None = None, **options: Any
) -> RecordStore:
    """Run a stage with Lightning's Trainer, and return the store."""
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    data = Records(source, target, **options)
    Trainer(**{**quiet, "accelerator": "cpu", **(trainer or {})}).predict(
        stage, datamodule=data, return_predictions=False
    )
    return RecordStore(target)


def pair_of(first: int, second: int, size: int = 40) -> Record:
    record = Record("r", history=[{"stage": "x"}])
    record.decoded = {
        side: torch.full((3, size, size), value, dtype=torch.uint8)
        for side, value in (("before", first), ("after", second))
    }
    return record


class Canned(TextModel):
    def __init__(self, answers: list[str]) -> None:
        super().__init__()
        self.answers = answers

    def answer(self, prompts: list[str], seeds: list[int]) -> list[str]:  # type: ignore[override]
        return self.answers[: len(prompts)]


def everything(store: RecordStore) -> list[tuple[object, ...]]:
    """Content of all records of a store, including the image bytes."""
    return [
        (r.id, r.facts, r.history, r.dropped, {name: data for name, data in sorted(r.images.items())}) for r in store
    ]


def digests(folder: Path) -> list[str]:
    """Names of the shard files of a store, which contain their checksums."""
    return sorted(path.name for path in folder.glob("*.arrow"))


def shards_of(folder: Path) -> set[int]:
    """Numbers of the shards whose records exist."""
    return {int(path.name.split("-")[1]) for path in folder.glob("records-*.arrow")}


def shard(folder: Path, number: int, table: str = "records") -> Path:
    """File of a shard."""
    (path,) = folder.glob(f"{table}-{number:05}-*.arrow")
    return path
