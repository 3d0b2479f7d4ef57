"""Run by test_distributed.py: train and test the tiny captioner on one or two gloo processes, and write the results."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from helpers.processes import gloo, run_script
from helpers.tiny import CrudeObjectiveCallback, NoiselessCallback, Shift, TinyCaptioner, TinyPairs
from helpers.training import QUIET
from lightning.pytorch import Trainer, seed_everything

from lightning_idc.models.adapter_callback import AdapterCallback


def main(kind: str, out: Path) -> None:
    torch.set_num_threads(1)
    seed_everything(3, workers=True, verbose=False)
    processes = 1 if kind == "one" else 2
    model = TinyCaptioner(dropout=0.0)
    trainer = Trainer(
        strategy=gloo(kind),
        devices=processes,
        max_epochs=3,
        callbacks=[
            AdapterCallback("shift", Shift),
            NoiselessCallback("color"),
            CrudeObjectiveCallback("crude", weight=0.0),
        ],
        default_root_dir=out,
        enable_checkpointing=False,
        **QUIET,
    )
    data = TinyPairs(batch_size=4 // processes, seed=1)
    trainer.fit(model, data)
    trainer.save_checkpoint(out / f"{kind}.ckpt")
    trainer.test(model, data, verbose=False)
    if trainer.is_global_zero:
        torch.save({"predictions": model.predictions, "scores": dict(trainer.callback_metrics)}, out / f"{kind}.pt")


if __name__ == "__main__":
    run_script(main, sys.argv[1], Path(sys.argv[2]))
