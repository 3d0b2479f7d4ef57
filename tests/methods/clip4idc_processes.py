"""Run by test_clip4idc.py: adapt a tiny CLIP on one or two gloo processes, write its weights and what was measured."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.strategies import DDPStrategy
from test_clip4idc import QUIET, TINY, PaintedPairs

from lightning_idc.methods.clip4idc.module import Clip4IdcRetrieval


def main(processes: int, out: Path) -> None:
    torch.set_num_threads(1)
    seed_everything(3, workers=True, verbose=False)
    model = Clip4IdcRetrieval(
        TINY, intra_layers=2, vocabulary=None, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05)
    )
    strategy = "auto" if processes == 1 else DDPStrategy(process_group_backend="gloo")
    trainer = Trainer(strategy=strategy, max_epochs=2, default_root_dir=out.parent, **{**QUIET, "devices": processes})
    trainer.fit(model, PaintedPairs(batch_size=6 // processes, seed=1))
    if trainer.is_global_zero:
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        torch.save({"weights": model.state_dict(), "metrics": metrics}, out)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
