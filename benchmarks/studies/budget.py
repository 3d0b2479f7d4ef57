"""Training runs of equal cost: CPU seconds end a run and its learning-rate schedule, whatever a step costs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from benchmarks.harness import quiet_trainer
from lightning_idc.models.schedules import Schedule, WarmupCosine

ENDLESS = 1_000_000
"""Epochs of a run that its budget ends."""


@dataclass(frozen=True)
class Budget:
    """CPU seconds for a training run and its preparation, counted from :meth:`begin`.

    Args:
        began: CPU time of the process at the beginning.
        seconds: seconds in total.
    """

    began: float
    seconds: float

    @classmethod
    def begin(cls, seconds: float, charged: float = 0.0) -> Budget:
        """A budget that runs from now on.

        Args:
            seconds: seconds in total.
            charged: of them that were spent before, on what this training shares with others.
        """
        return cls(time.process_time() - charged, seconds)

    @property
    def spent(self) -> float:
        return time.process_time() - self.began

    @property
    def share(self) -> float:
        """Of the seconds that are spent, at most 1."""
        return min(self.spent / self.seconds, 1.0)


@dataclass(frozen=True)
class ByClock(Schedule):
    """Linear warm-up, then cosine decay to the end of the budget, by time instead of steps.

    Args:
        budget: budget of the training run.
        start: fraction of the budget spent before training.
        warmup: fraction of the rest for the warm-up.
    """

    budget: Budget
    start: float
    warmup: float = 0.05

    @classmethod
    def over_the_rest(cls, budget: Budget) -> ByClock:
        """The whole rise and fall in the seconds that are left."""
        return cls(budget, budget.share)

    def __call__(self, progress: float) -> float:
        return WarmupCosine(self.warmup)((self.budget.share - self.start) / max(1.0 - self.start, 1e-9))


class StopAtBudget(Callback):
    """Ends training with the budget; counts steps.

    Args:
        budget: budget of the training run.
    """

    def __init__(self, budget: Budget) -> None:
        self.budget, self.steps = budget, 0

    def on_train_batch_end(self, trainer: Trainer, *unused: Any) -> None:
        self.steps += 1
        if self.budget.spent >= self.budget.seconds:
            trainer.should_stop = True


def fitted(
    model: LightningModule, data: Any, budget: Budget, folder: Path, callbacks: Sequence[Callback] = ()
) -> tuple[Trainer, int]:
    """Train until the budget is spent; return the trainer and the number of steps.

    Args:
        model: model to train.
        data: training data.
        budget: budget of the training run.
        folder: folder of the callbacks' files.
        callbacks: callbacks of the training run.
    """
    stop = StopAtBudget(budget)
    trainer = quiet_trainer(
        max_epochs=ENDLESS,
        limit_val_batches=0,
        gradient_clip_val=1.0,
        callbacks=[*callbacks, stop],
        default_root_dir=folder,
    )
    trainer.fit(model, data)
    return trainer, stop.steps
