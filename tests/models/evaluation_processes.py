"""Run by test_evaluation_processes.py: validate and test the tiny captioner on splits of a few pairs."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import torch
from helpers.processes import run_script
from helpers.tiny import TinyCaptioner, TinyPairs, TinySource
from helpers.training import QUIET
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.strategies import DDPStrategy

from lightning_idc.models import evaluation

SECONDS = 60
"""Time limit of an evaluation of seven pairs; it ends a process that waits forever."""
SIZES = ((1, 1), (2, 1), (3, 2), (5, 1), (5, 2), (7, 1))
"""Numbers of pairs and batch sizes."""
REFERENCES = {
    "all": lambda index: True,
    "first": lambda index: index == 0,
    "odd": lambda index: index % 2 == 1,
    "none": lambda index: False,
}


class Some(TinySource):
    """Pairs of which only some have captions."""

    def __init__(self, size: int, which: str) -> None:
        super().__init__(size, 500)
        self.which = which

    def captions(self, index: int) -> list[str]:
        return super().captions(index) if REFERENCES[self.which](index) else []


class Few(TinyPairs):
    def __init__(self, size: int, which: str, batch_size: int) -> None:
        super().__init__(batch_size=batch_size)
        self.size, self.which = size, which

    def source(self, split: str) -> TinySource:
        return TinySource(16, 0) if split == "train" else Some(self.size, self.which)


def evaluate(processes: int, size: int, which: str, batch_size: int) -> dict[str, Any]:
    seed_everything(3, verbose=False)
    model = TinyCaptioner(
        vocabulary=["<pad>", "<bos>", "<eos>", "<unk>", "it", "turned", "red", "green", "blue", "now"], max_length=5
    )
    strategy = "auto" if processes == 1 else DDPStrategy(process_group_backend="gloo")
    trainer = Trainer(strategy=strategy, devices=processes, **QUIET)
    data = Few(size, which, batch_size)
    result: dict[str, Any] = {}
    for verb in (trainer.validate, trainer.test):
        signal.alarm(SECONDS)
        verb(model, data, verbose=False)
        signal.alarm(0)
        result |= {name: float(value) for name, value in trainer.callback_metrics.items()}
    result["said"] = [(record["id"], record["caption"]) for record in model.predictions]
    return result


def main(processes: int, out: Path) -> None:
    torch.set_num_threads(1)
    evaluation.STANDARD_METRICS = (
        evaluation.FAST_METRICS
    )  # METEOR takes seconds per evaluation and is gathered like the others
    result = {}
    for size, batch_size in SIZES:
        for which in REFERENCES:
            result[f"{size} {which} {batch_size}"] = evaluate(processes, size, which, batch_size)
    if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
        torch.save(result, out / f"{processes}.pt")


if __name__ == "__main__":
    run_script(main, int(sys.argv[1]), Path(sys.argv[2]))
