"""StopCleanly: Ctrl-C finishes the current step, saves a checkpoint and stops; a resumed run has the same result."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_idc.checkpoints.checkpoint_io import save_interrupted

STDERR = 2
"""File descriptor of the error output."""


class StopCleanly(Callback):
    """The first Ctrl-C saves a checkpoint after the current step and stops; the second one stops immediately.

    If a validation follows the step, the checkpoint is saved after the next step: Lightning would skip the validation
    when resuming from a checkpoint between the two, and the result would differ.

    Args:
        folder: folder of ``interrupted.ckpt``; None for ``checkpoints`` in the trainer's folder.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = folder
        self._is_interrupted = self._awaits_validation = False
        self._previous_handler: Any = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # processes receive the signal in different steps, but saving needs all of them
        if trainer.world_size > 1 or threading.current_thread() is not threading.main_thread():
            return
        self._is_interrupted = self._awaits_validation = False
        self._previous_handler = signal.signal(signal.SIGINT, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._is_interrupted:
            raise KeyboardInterrupt
        self._is_interrupted = True
        # not `print`, which raises an error if the signal comes while the training itself prints
        with suppress(OSError):
            os.write(STDERR, b"\nstopping after this step; press Ctrl-C again to stop immediately ...\n")

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # within gradient accumulation, the accumulated gradients would be lost
        is_step_complete = (batch_idx + 1) % trainer.accumulate_grad_batches == 0 or trainer.is_last_batch
        if not self._is_interrupted or not is_step_complete:
            return
        every = trainer.val_check_batch
        # as in Lightning: counted per epoch, or over all epochs if check_val_every_n_epoch is None
        over_epochs = trainer.check_val_every_n_epoch is None
        done = 1 + (trainer.fit_loop.epoch_loop.total_batch_idx if over_epochs else batch_idx)
        self._awaits_validation = trainer.is_last_batch or (isinstance(every, int) and done % every == 0)
        if self._awaits_validation:
            return
        folder = Path(trainer.default_root_dir) / "checkpoints" if self.folder is None else Path(self.folder)
        target = save_interrupted(trainer, folder)
        print(f"\nstopping after step {trainer.global_step}, saved in {target}", flush=True)
        raise KeyboardInterrupt

    def on_validation_batch_end(self, trainer: Trainer, pl_module: LightningModule, *unused: Any) -> None:
        if self._is_interrupted and not self._awaits_validation:
            raise KeyboardInterrupt  # the checkpoint of the epoch is newer than one saved here

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._restore()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._restore()

    def _restore(self) -> None:
        if self._previous_handler is not None:
            signal.signal(signal.SIGINT, self._previous_handler)
            self._previous_handler = None
