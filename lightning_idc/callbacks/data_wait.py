"""DataWait: how long training waits for its loader, the figure that says whether more workers would help."""

from __future__ import annotations

import time
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer


class DataWait(Callback):
    """Logs ``train/data_wait``, the share of an epoch that went by between a step and the batch of the next one.

    Counted is what passes from the end of a step, behind its other callbacks, until the next batch is there; validation
    and checkpoints within an epoch are left out. A share near 0 means that the loader is never waited for.

    Example:
        >>> DataWait().share
        0.0
    """

    def __init__(self) -> None:
        self._began = self._waited = 0.0
        self._behind: float | None = None

    @property
    def share(self) -> float:
        """Of the current epoch so far."""
        passed = time.perf_counter() - self._began
        return self._waited / passed if self._began else 0.0

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._began = self._behind = time.perf_counter()
        self._waited = 0.0

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *unused: Any) -> None:
        if self._behind is not None:
            self._waited += time.perf_counter() - self._behind
            self._behind = None

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *unused: Any) -> None:
        self._behind = time.perf_counter()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._behind = None

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        pl_module.log("train/data_wait", self.share, batch_size=1)
