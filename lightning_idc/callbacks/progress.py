"""Progress for people: Lightning's bar in a terminal, a line now and then where the output is a file."""

from __future__ import annotations

import sys
import time
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer


def duration(seconds: float) -> str:
    """Seconds as ``1:02:03`` or ``2:03``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class PlainProgress(Callback):
    """Prints step, loss and time left at most once in a while.

    Args:
        every: least seconds between two lines.
    """

    def __init__(self, every: float = 10.0) -> None:
        self.every = every
        self._began = self._last = 0.0
        self._first_step = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._began = self._last = time.monotonic()
        self._first_step = trainer.global_step

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *unused: Any) -> None:
        now = time.monotonic()
        if now - self._last < self.every or not trainer.is_global_zero:
            return
        self._last = now
        done = trainer.global_step - self._first_step
        total = trainer.estimated_stepping_batches
        left = (total - trainer.global_step) * (now - self._began) / max(done, 1)
        metrics = trainer.progress_bar_metrics
        shown = ", ".join(f"{name} {value:.3g}" for name, value in metrics.items() if isinstance(value, float) and name != "v_num")
        print(f"step {trainer.global_step}/{total:g}, {duration(left)} left; {shown}", flush=True)


def default_progress(config: dict[str, Any]) -> dict[str, Any]:
    """Trainer arguments that replace the bar by lines where the output is no terminal."""
    if sys.stdout.isatty() or config.get("enable_progress_bar") is not None:
        return {}
    return {"enable_progress_bar": False, "callbacks": [*(config.get("callbacks") or []), PlainProgress()]}
