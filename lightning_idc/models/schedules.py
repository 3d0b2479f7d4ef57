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
    """Base class of schedules that begin with a linear rise.

    Args:
        warmup: fraction of the run with a rising rate.

    Raises:
        ConfigError: it is not between 0 and 1, for example a number of steps.
    """

    warmup: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.warmup <= 1:
            raise ConfigError(
                f"warmup is {self.warmup}; expected a fraction of the run, from 0 to 1: divide the number of "
                "warm-up steps by the number of all steps"
            )


def _rise(progress: float, warmup: float) -> float:
    """Linear rise, never exactly 0, which would waste the first step."""
    return max(progress / warmup, 1e-3)


@dataclass(frozen=True)
class WarmupCosine(Warmup):
    """Linear rise, then half a cosine down.

    Args:
        warmup: fraction of the run with a rising rate.
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
    """Linear rise, then a half cosine over the run from its first step: ``warmup_cosine`` of BertAdam.

    At the end of the rise the cosine is below 1 already: 0.976 after a tenth of the run.

    Args:
        warmup: fraction of the run with a rising rate.
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
        warmup: fraction of the run with a rising rate.
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
    """Return value of ``configure_optimizers``: the optimizer, with a scheduler unless all schedules are constant.

    Args:
        optimizer: the optimizer of the run.
        schedules: one for all parameter groups, or one for each.
        trainer: gives the number of steps; not used if all schedules are constant, since it would load the data.

    Raises:
        ConfigError: a schedule needs the number of steps, and the run is unlimited.
    """
    from torch.optim.lr_scheduler import LambdaLR

    _allow_clipping(optimizer, trainer)
    group_schedules = [schedules] * len(optimizer.param_groups) if isinstance(schedules, Schedule) else list(schedules)
    changing = [schedule for schedule in group_schedules if not isinstance(schedule, Constant)]
    if not changing:
        return optimizer
    steps = trainer.estimated_stepping_batches
    if steps == float("inf"):
        raise ConfigError(f"{type(changing[0]).__name__} needs an end: set trainer.max_epochs or trainer.max_steps")

    def multiplier_of(schedule: Schedule) -> Callable[[int], float]:
        return lambda step: schedule(step / max(1.0, float(steps)))

    scheduler = LambdaLR(optimizer, [multiplier_of(schedule) for schedule in group_schedules])
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def _allow_clipping(optimizer: Optimizer, trainer: Trainer) -> None:
    """Allow gradient clipping under mixed precision with a fused optimizer.

    A fused optimizer unscales 16-bit gradients itself, after clipping; Lightning therefore refuses to clip, also for
    bfloat16, which is not scaled. Without ``_step_supports_amp_scaling`` the gradients are unscaled before clipping,
    and the fused kernel is still used.
    """
    from lightning.pytorch.plugins import MixedPrecision

    if trainer.gradient_clip_val and isinstance(trainer.precision_plugin, MixedPrecision):
        cast(Any, optimizer)._step_supports_amp_scaling = False
