"""Lightning's learning rate finder on modules of the library. Oracle: its own suggestion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tiny import TinyCaptioner, TinyPairs
from helpers.training import SILENT
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import LearningRateFinder
from lightning.pytorch.tuner import Tuner

from lightning_idc.models.schedules import WarmupLinear

torch.set_num_threads(1)


class FirstRates(Callback):
    """Records the learning rates of the parameter groups in the first step."""

    def __init__(self) -> None:
        self.rates: dict[str, float] = {}

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        self.rates = self.rates or {group["name"]: group["lr"] for group in optimizer.param_groups}


def captioner() -> TinyCaptioner:
    return TinyCaptioner(learning_rates={"vision": 0.5}, schedule=WarmupLinear(warmup=0.5))


def rates_from(lr: float, steps: int) -> dict[str, float]:
    """Expected learning rates in the first of ``steps`` steps, at the start of the warm-up."""
    first = WarmupLinear(warmup=0.5)(0.0 / steps)
    return {"vision": pytest.approx(0.5 * lr * first), "language": pytest.approx(lr * first)}


@pytest.mark.slow
def test_the_tuner_sets_the_rate_of_the_next_training(tmp_path: Path) -> None:
    seen, model = FirstRates(), captioner()
    trainer = Trainer(max_epochs=4, limit_val_batches=0, default_root_dir=tmp_path, callbacks=[seen], **SILENT)
    finder = Tuner(trainer).lr_find(model, datamodule=TinyPairs(batch_size=4), num_training=14)
    assert finder is not None and model.lr == finder.suggestion() is not None
    seen.rates = {}
    trainer.fit(model, TinyPairs(batch_size=4))
    assert seen.rates == rates_from(model.lr, trainer.global_step)


@pytest.mark.slow
def test_the_callback_sets_the_rate_with_factors_and_schedule(tmp_path: Path) -> None:
    seen, model, finder = FirstRates(), captioner(), LearningRateFinder(num_training_steps=14)
    callbacks: list[Callback] = [finder, seen]
    trainer = Trainer(max_epochs=4, limit_val_batches=0, default_root_dir=tmp_path, callbacks=callbacks, **SILENT)
    trainer.fit(model, TinyPairs(batch_size=4))
    assert finder.optimal_lr is not None and model.lr == finder.optimal_lr.suggestion() is not None
    assert seen.rates == rates_from(model.lr, trainer.global_step)
