"""A gradient that is not finite ruins no checkpoint on the disk, and the run can be resumed from what is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tiny import TinyCaptioner, TinyPairs
from helpers.training import QUIET
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_idc.checkpoints.checkpoint_io import AtomicCheckpointIO, newest_checkpoint
from lightning_idc.utils.errors import CheckpointError, ConfigError

STEPS = 6


class BadGradient(Callback):
    def __init__(self, step: int, value: float) -> None:
        self.step, self.value = step, value

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.global_step == self.step:
            next(p for p in pl_module.parameters() if p.grad is not None).grad.flatten()[0] = self.value  # type: ignore[union-attr]


def train(folder: Path, callbacks: list[Callback], every: int, **options: Any) -> None:
    seed_everything(1)
    saver = ModelCheckpoint(dirpath=folder, filename="{step}", every_n_train_steps=every, save_top_k=-1, save_last=True)
    settings = {**QUIET, "enable_checkpointing": True, "max_steps": STEPS, "max_epochs": -1, "limit_val_batches": 0}
    trainer = Trainer(
        **{**settings, **options, "callbacks": [saver, *callbacks], "plugins": [AtomicCheckpointIO()]},
        default_root_dir=folder,
    )
    path = newest_checkpoint(folder)
    trainer.fit(TinyCaptioner(), TinyPairs(), ckpt_path=None if path is None else str(path), weights_only=True)


@pytest.mark.parametrize("step", [1, STEPS - 1], ids=["in the middle", "at the last step"])
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 1e38])
@pytest.mark.parametrize("clip", [None, 1.0], ids=["unclipped", "clipped"])
def test_checkpoints_stay_finite_and_the_run_goes_on(
    step: int, value: float, clip: float | None, tmp_path: Path
) -> None:
    try:
        train(tmp_path, [BadGradient(step, value)], 1, gradient_clip_val=clip)
    except (CheckpointError, ConfigError) as error:
        assert "\n" not in str(error)
    else:
        assert value == 1e38, "only a finite gradient may pass"
    for path in tmp_path.glob("*.ckpt"):
        weights = torch.load(path, weights_only=True)["state_dict"].values()
        assert all(torch.isfinite(weight).all() for weight in weights if weight.is_floating_point()), path.name
    assert newest_checkpoint(tmp_path) is not None
    train(tmp_path, [], 1, gradient_clip_val=clip)
    newest = newest_checkpoint(tmp_path)
    assert newest is not None and torch.load(newest, weights_only=True)["global_step"] == STEPS


def test_a_checkpoint_with_nan_is_passed_over(tmp_path: Path) -> None:
    train(tmp_path, [], 2)
    newest = newest_checkpoint(tmp_path)
    assert newest is not None
    content = torch.load(newest, weights_only=True)
    next(iter(content["state_dict"].values())).flatten()[0] = float("nan")
    content["global_step"] += 1
    torch.save(content, tmp_path / "later.ckpt")
    notes: list[str] = []
    assert newest_checkpoint(tmp_path, notes.append) == newest and "NaN" in notes[0]
