"""Run by test_clip4idc.py: adapts a tiny CLIP on one or two gloo processes; saves its weights and metrics."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import DDPStrategy
from test_clip4idc import QUIET, TINY, PaintedPairs

from lightning_idc.methods.clip4idc.module import Clip4IdcRetrieval


class Start(Callback):
    """Records the initial weights."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.weights = {name: value.clone() for name, value in pl_module.state_dict().items()}


def main(processes: int, out: Path) -> None:
    torch.set_num_threads(1)
    seed_everything(3, workers=True, verbose=False)
    model = Clip4IdcRetrieval(
        TINY, intra_layers=2, vocabulary=None, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05)
    )
    strategy = "auto" if processes == 1 else DDPStrategy(process_group_backend="gloo")
    # in double precision, so that batches of three and of six round in the same way
    options: dict[str, Any] = {**QUIET, "devices": processes, "precision": "64-true"}
    start = Start()
    trainer = Trainer(strategy=strategy, callbacks=start, max_epochs=2, default_root_dir=out.parent, **options)
    trainer.fit(model, PaintedPairs(batch_size=6 // processes, seed=1))
    if trainer.is_global_zero:
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        torch.save({"start": start.weights, "weights": model.state_dict(), "metrics": metrics}, out)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
