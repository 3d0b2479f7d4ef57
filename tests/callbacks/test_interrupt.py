"""StopCleanly: the step at which a stopped run is saved."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tiny import TinyCaptioner, TinyPairs
from helpers.training import QUIET
from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_idc.callbacks.interrupt import StopCleanly


class PressAfter(Callback):
    """Sends Ctrl-C in the step after the given number of steps."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *unused: Any) -> None:
        if trainer.global_step == self.steps:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(("pressed", "saved"), [(4, 5), (5, 7), (6, 7)])
def test_no_state_is_saved_right_before_a_validation_that_is_counted_over_epochs(
    pressed: int, saved: int, tmp_path: Path
) -> None:
    """Resuming there, Lightning would skip the validation, which is due every third step in epochs of four steps."""
    options = {**QUIET, "max_steps": 12, "val_check_interval": 3, "check_val_every_n_epoch": None}
    options |= {"enable_checkpointing": False, "default_root_dir": tmp_path}
    callbacks = [PressAfter(pressed), StopCleanly(tmp_path)]
    trainer = Trainer(**options, callbacks=callbacks)  # type: ignore[arg-type]
    with pytest.raises(SystemExit):
        trainer.fit(TinyCaptioner(dropout=0.0), TinyPairs(batch_size=4))
    checkpoint = torch.load(tmp_path / "interrupted.ckpt", weights_only=True)
    assert checkpoint["global_step"] == saved
