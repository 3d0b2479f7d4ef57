"""resume_point: a checkpoint of the latest state for resuming, independent of the selected checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint


def resume_point(checkpoint_callbacks: Sequence[Checkpoint]) -> ModelCheckpoint | None:
    """Callback that writes ``last.ckpt`` after every validation; None if another callback already saves the last state.

    A ModelCheckpoint with a monitor writes ``last.ckpt`` only if the metric improved, so that training after the best
    validation would be lost. Its ``save_last`` is therefore turned off.

    Args:
        checkpoint_callbacks: checkpoint callbacks of a trainer; empty if it does not save checkpoints.
    """
    callbacks = [callback for callback in checkpoint_callbacks if isinstance(callback, ModelCheckpoint)]
    if not callbacks or any(map(_saves_last_state, callbacks)):
        return None
    for callback in callbacks:
        callback.save_last = False
    # a single file without a version, overwritten each time: save_last would write a second one
    return _LastState(filename="last", enable_version_counter=False)


class _LastState(ModelCheckpoint):
    """Also saves at the end, if training ends before the first validation."""

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_end(trainer, pl_module)
        if not self.best_model_path and not self._should_skip_saving_checkpoint(trainer):
            self._save_topk_checkpoint(trainer, self._monitor_candidates(trainer))


def _saves_last_state(callback: ModelCheckpoint) -> bool:
    """Whether a checkpoint callback without a monitor saves the complete state."""
    saves = callback.save_top_k != 0 or bool(callback.save_last)
    return callback.monitor is None and not callback.save_weights_only and saves
