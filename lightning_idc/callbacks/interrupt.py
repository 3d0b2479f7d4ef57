"""StopCleanly: Ctrl-C ends the current step, saves, and stops, so that the run continues to the same result."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_idc.checkpoints.checkpoint_io import INTERRUPTED


class StopCleanly(Callback):
    """Turns the first Ctrl-C of a training run into a checkpoint after the current step; the second stops at once.

    Where a validation follows the step, the checkpoint comes after the first step behind it: Lightning does not
    validate when it resumes from one that was saved in between, and the result differs.

    Args:
        folder: where ``interrupted.ckpt`` is written; None for ``checkpoints`` in the trainer's folder.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = folder
        self._asked = self._waits = False
        self._before: Any = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # several processes hear of it in different steps, and one cannot save without the others
        if trainer.world_size > 1 or threading.current_thread() is not threading.main_thread():
            return
        self._asked = self._waits = False
        self._before = signal.signal(signal.SIGINT, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # in the middle of accumulating, the gradients so far would be lost
        whole = (batch_idx + 1) % trainer.accumulate_grad_batches == 0 or trainer.is_last_batch
        if not self._asked or not whole:
            return
        every = trainer.val_check_batch
        # as Lightning counts them: within the epoch, or over all of them where no epoch is named
        over_epochs = trainer.check_val_every_n_epoch is None
        done = 1 + (trainer.fit_loop.epoch_loop.total_batch_idx if over_epochs else batch_idx)
        self._waits = trainer.is_last_batch or (isinstance(every, int) and done % every == 0)
        if self._waits:
            return
        folder = Path(trainer.default_root_dir) / "checkpoints" if self.folder is None else Path(self.folder)
        target = folder / INTERRUPTED
        trainer.save_checkpoint(target)
        print(f"\nstopping after step {trainer.global_step}, saved in {target}", flush=True)
        raise KeyboardInterrupt

    def on_validation_batch_end(self, trainer: Trainer, pl_module: LightningModule, *unused: Any) -> None:
        if self._asked and not self._waits:
            raise KeyboardInterrupt  # the epoch's own checkpoint is newer than anything that could be saved here

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._restore()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._restore()

    def _restore(self) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None
