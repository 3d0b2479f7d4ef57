"""SkipNonFiniteSteps: skips optimizer steps whose loss or gradients are not finite."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_idc.models.loss_check import gradient_norm
from lightning_idc.models.module import PairModule
from lightning_idc.utils.bounds import PositiveInt, check_arguments
from lightning_idc.utils.errors import ConfigError


class SkipNonFiniteSteps(Callback):
    """Skips optimizer steps whose loss or gradients are not finite; without this callback, such a step is an error.

    A skipped step changes neither weights nor the state of the optimizer, and counts as a step of the schedule. The
    number of skipped steps is logged as ``train/skipped_steps``. On an accelerator every step waits for its gradients.
    With ``precision: 16-mixed`` the gradient scaler skips steps, and this callback does nothing.

    Args:
        max_in_a_row: number of skipped steps in a row after which the training stops.

    Raises:
        ConfigError: more steps in a row are not finite.

    Example:
        >>> SkipNonFiniteSteps(max_in_a_row=3).skipped
        0
    """

    def __init__(self, max_in_a_row: PositiveInt = 10) -> None:
        check_arguments(SkipNonFiniteSteps.__init__, locals())
        self.max_in_a_row = max_in_a_row
        self.skipped = 0
        """Number of skipped steps."""
        self._in_a_row = 0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if isinstance(pl_module, PairModule) and stage == "fit":
            pl_module.loss_check.enabled = pl_module.gradient_check.enabled = False

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if isinstance(pl_module, PairModule) and stage == "fit":
            pl_module.loss_check.enabled = pl_module.gradient_check.enabled = True

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        has_scaler = getattr(trainer.precision_plugin, "scaler", None) is not None
        nonfinite = (~torch.isfinite(gradient_norm(optimizer))).float().to(pl_module.device)
        # sharded gradients differ between processes
        is_skipped = bool(trainer.strategy.reduce(nonfinite, reduce_op="sum")) and not has_scaler
        if is_skipped:
            # optimizers leave out parameters without a gradient, with their momentum and weight decay
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None
            self.skipped, self._in_a_row = self.skipped + 1, self._in_a_row + 1
            if self._in_a_row > self.max_in_a_row:
                raise ConfigError(
                    f"the gradients of {self._in_a_row} steps in a row were not finite, up to step "
                    f"{trainer.global_step}; lower the learning rate, or resume from an earlier checkpoint"
                )
        else:
            self._in_a_row = 0
        pl_module.log("train/skipped_steps", float(self.skipped))

    def state_dict(self) -> dict[str, Any]:
        return {"skipped": self.skipped}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.skipped = int(state_dict["skipped"])
