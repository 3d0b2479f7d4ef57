"""PlainProgress: prints lines of progress where there is no terminal for Lightning's progress bar."""

from __future__ import annotations

import math
import sys
import time
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_idc.utils.bounds import NonNegativeFloat, check_arguments


def duration(seconds: float) -> str:
    """Seconds as ``1:02:03`` or ``2:03``."""
    minutes, remainder = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{remainder:02}" if hours else f"{minutes}:{remainder:02}"


class PlainProgress(Callback):
    """Prints the progress of a run and the remaining time as lines.

    Args:
        every: minimum number of seconds between two lines.
    """

    def __init__(self, every: NonNegativeFloat = 10.0) -> None:
        check_arguments(PlainProgress.__init__, locals())
        self.every = every
        self._began = self._last = self._began_evaluation = 0.0
        self._first_step = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._first_step = trainer.global_step
        self._began = math.inf

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *unused: Any) -> None:
        # what a captioner does in its own on_train_start, such as growing trees, is no part of the time of a step
        if self._began == math.inf:
            self._began = self._last = time.monotonic()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *unused: Any) -> None:
        if not self._due(trainer):
            return
        total = trainer.estimated_stepping_batches
        metrics = trainer.progress_bar_metrics.items()
        self._print(
            "step",
            index=trainer.global_step,
            total=total,
            num_done=trainer.global_step - self._first_step,
            began=self._began,
            metrics="".join(f", {name} {value:.3g}" for name, value in metrics if isinstance(value, float)),
        )

    def _begin_evaluation(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._began_evaluation = time.monotonic()
        self._last = max(self._last, self._began_evaluation)

    on_validation_start = on_test_start = on_predict_start = _begin_evaluation

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, *unused: Any
    ) -> None:
        if not trainer.sanity_checking and self._due(trainer):
            self._print("validation, batch", batch_idx + 1, sum(trainer.num_val_batches), batch_idx + 1)

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, *unused: Any
    ) -> None:
        if self._due(trainer):
            self._print("test, batch", batch_idx + 1, sum(trainer.num_test_batches), batch_idx + 1)

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, *unused: Any
    ) -> None:
        if self._due(trainer):
            self._print("prediction, batch", batch_idx + 1, sum(trainer.num_predict_batches), batch_idx + 1)

    def _due(self, trainer: Trainer) -> bool:
        now = time.monotonic()
        if now - self._last < self.every or not trainer.is_global_zero:
            return False
        self._last = now
        return True

    def _print(
        self, unit: str, index: int, total: float, num_done: int, began: float | None = None, metrics: str = ""
    ) -> None:
        elapsed = time.monotonic() - (self._began_evaluation if began is None else began)
        # the remaining time is unknown for endless runs
        has_end = math.isfinite(total) and num_done > 0
        remaining = f"/{total:g}, {duration((total - index) * elapsed / num_done)} left" if has_end else ""
        print(f"{unit} {index}{remaining}{metrics}", flush=True)


def default_progress(config: dict[str, Any]) -> list[Callback]:
    """Default progress callbacks: none in a terminal, where Lightning shows its bar, else `PlainProgress`."""
    enable_progress_bar = config.get("enable_progress_bar")
    return [PlainProgress()] if enable_progress_bar is None and not sys.stdout.isatty() else []
