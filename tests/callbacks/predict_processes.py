"""Run by test_write_predictions.py: predict slowly with the tiny captioner, until it finishes or is killed."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
from helpers.processes import gloo, run_script
from helpers.tiny import TinyCaptioner, TinyPairs, TinySource
from helpers.training import QUIET
from lightning.pytorch import Callback, Trainer, seed_everything

from lightning_idc.callbacks.write_predictions import WritePredictions
from lightning_idc.models.loading import load_module

PAIRS = 600


class ManyPairs(TinyPairs):
    def source(self, split: str) -> TinySource:
        return TinySource(PAIRS, 0)


class Counted(Callback):
    """Records the pairs that are captioned, and pauses after every batch."""

    def __init__(self, out: Path, pause: float) -> None:
        self.out, self.pause = out, pause

    def on_predict_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, *unused: Any) -> None:
        with (self.out / f"seen{trainer.global_rank}").open("a") as file:
            file.write("".join(f"{id}\n" for id in batch.ids))
        time.sleep(self.pause)


def main(kind: str, out: Path, pause: float) -> None:
    torch.set_num_threads(1)
    seed_everything(3, verbose=False)
    trainer = Trainer(
        strategy=gloo(kind),
        devices=1 if kind == "one" else 2,
        default_root_dir=out,
        callbacks=[WritePredictions(), Counted(out, pause)],
        **QUIET,
    )
    trainer.predict(load_module(TinyCaptioner, out / "model.ckpt"), ManyPairs(batch_size=8))


if __name__ == "__main__":
    run_script(main, sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))
