"""Learning-rate schedules: a multiplier of the base rate as a function of the run's progress."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from lightning_idc.utils.errors import ConfigError

if TYPE_CHECKING:
    from lightning.pytorch import Trainer
    from torch.optim import Optimizer


class Schedule(ABC):
    """Maps progress, 0 at the first step and 1 at the last, to a multiplier of the learning rate."""

    @abstractmethod
    def __call__(self, progress: float) -> float: ...


@dataclass(frozen=True)
class Constant(Schedule):
    """The base rate throughout."""

    def __call__(self, progress: float) -> float:
        return 1.0


@dataclass(frozen=True)
class Warmup(Schedule):
    """Schedule that begins with a rise.

    Args:
        warmup: share of the run spent rising.

    Raises:
        ConfigError: it is no share, such as a number of steps, by which nearly no rate would be left.
    """

    warmup: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.warmup <= 1:
            raise ConfigError(
                f"warmup is {self.warmup}; expected a share of the run, from 0 to 1: divide a number of steps by those "
                "of the whole run"
            )


def _rise(progress: float, warmup: float) -> float:
    """Linear; the first step must not be wasted on a rate of exactly zero."""
    return max(progress / warmup, 1e-3)


@dataclass(frozen=True)
class WarmupCosine(Warmup):
    """Linear rise, then half a cosine down.

    Args:
        warmup: share of the run spent rising.
        floor: multiplier at the end.
    """

    warmup: float = 0.05
    floor: float = 0.0

    def __call__(self, progress: float) -> float:
        if progress < self.warmup:
            return _rise(progress, self.warmup)
        fall = (progress - self.warmup) / max(1.0 - self.warmup, 1e-12)
        return self.floor + (1.0 - self.floor) * 0.5 * (1.0 + math.cos(math.pi * min(fall, 1.0)))


@dataclass(frozen=True)
class BertWarmupCosine(Warmup):
    """Linear rise, then down a half cosine that began with the run: ``warmup_cosine`` of BertAdam.

    Where the rise ends, the cosine is below 1 already: 0.976 after a tenth of the run.

    Args:
        warmup: share of the run spent rising.
    """

    warmup: float = 0.1

    def __call__(self, progress: float) -> float:
        if progress < self.warmup:
            return _rise(progress, self.warmup)
        return 0.5 * (1.0 + math.cos(math.pi * min(progress, 1.0)))


@dataclass(frozen=True)
class WarmupLinear(Warmup):
    """Linear rise, then linear fall.

    Args:
        warmup: share of the run spent rising.
        floor: multiplier at the end.
    """

    warmup: float = 0.1
    floor: float = 0.0

    def __call__(self, progress: float) -> float:
        if progress < self.warmup:
            return _rise(progress, self.warmup)
        fall = (progress - self.warmup) / max(1.0 - self.warmup, 1e-12)
        return self.floor + (1.0 - self.floor) * (1.0 - min(fall, 1.0))


def scheduled(optimizer: Optimizer, schedules: Schedule | Sequence[Schedule], trainer: Trainer) -> Any:
    """What ``configure_optimizers`` returns: the optimizer, with its learning rates over the run unless constant.

    Args:
        optimizer: of the run.
        schedules: one for all groups of parameters, or one for each.
        trainer: knows how many steps the run has; not asked where nothing moves, since it would load the data.

    Raises:
        ConfigError: a schedule needs an end, and the run has none.
    """
    from torch.optim.lr_scheduler import LambdaLR

    _allow_clipping(optimizer, trainer)
    rules = [schedules] * len(optimizer.param_groups) if isinstance(schedules, Schedule) else list(schedules)
    moving = [rule for rule in rules if not isinstance(rule, Constant)]
    if not moving:
        return optimizer
    steps = trainer.estimated_stepping_batches
    if steps == float("inf"):
        raise ConfigError(f"{type(moving[0]).__name__} needs an end: set trainer.max_epochs or trainer.max_steps")

    def over_the_run(rule: Schedule) -> Callable[[int], float]:
        return lambda step: rule(step / max(1.0, float(steps)))

    scheduler = LambdaLR(optimizer, [over_the_run(rule) for rule in rules])
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def _allow_clipping(optimizer: Optimizer, trainer: Trainer) -> None:
    """Let gradients be clipped under mixed precision where the optimizer is fused.

    A fused optimizer would undo the scaling of 16-bit gradients by itself, after they were clipped; Lightning refuses
    to clip then, also for bfloat16, which is not scaled. Without the mark the gradients are unscaled before clipping
    and the fused kernel is used as it is.
    """
    from lightning.pytorch.plugins import MixedPrecision

    if trainer.gradient_clip_val and isinstance(trainer.precision_plugin, MixedPrecision):
        cast(Any, optimizer)._step_supports_amp_scaling = False
