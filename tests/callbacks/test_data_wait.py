"""DataWait tells a slow loader from a slow step."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from helpers.tiny import TinyCaptioner, TinyPairs
from helpers.training import quiet_trainer
from lightning.pytorch import Callback

from lightning_idc.callbacks.data_wait import DataWait


class SlowStep(Callback):
    def on_before_backward(self, *unused: Any) -> None:
        time.sleep(0.05)


class SlowPairs(TinyPairs):
    def source(self, split: str) -> Any:
        found: Any = super().source(split)
        load = found.load
        found.load = lambda index: (time.sleep(0.02), load(index))[1]
        return found


@pytest.mark.parametrize("slow", ["loader", "step"])
def test_the_share_says_what_is_slow(tmp_path: Path, slow: str) -> None:
    data = (SlowPairs if slow == "loader" else TinyPairs)(batch_size=4)
    callbacks = [DataWait(), *([SlowStep()] if slow == "step" else [])]
    trainer = quiet_trainer("cpu", tmp_path, max_epochs=2, callbacks=callbacks, limit_val_batches=1)
    trainer.fit(TinyCaptioner(), data)
    share = float(trainer.callback_metrics["train/data_wait"])
    assert 0 < share < 1
    assert share > 0.5 if slow == "loader" else share < 0.4
