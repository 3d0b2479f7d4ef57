"""Learning-rate schedules: a multiplier of the base rate as a function of the run's progress."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass


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
class WarmupCosine(Schedule):
    """Linear rise, then half a cosine down.

    Args:
        warmup: share of the run spent rising.
        floor: multiplier at the end.
    """

    warmup: float = 0.05
    floor: float = 0.0

    def __call__(self, progress: float) -> float:
        if progress < self.warmup:
            # the first step must not be wasted on a rate of exactly zero
            return max(progress / self.warmup, 1e-3)
        fall = (progress - self.warmup) / max(1.0 - self.warmup, 1e-12)
        return self.floor + (1.0 - self.floor) * 0.5 * (1.0 + math.cos(math.pi * min(fall, 1.0)))


@dataclass(frozen=True)
class WarmupLinear(Schedule):
    """Linear rise, then linear fall.

    Args:
        warmup: share of the run spent rising.
        floor: multiplier at the end.
    """

    warmup: float = 0.1
    floor: float = 0.0

    def __call__(self, progress: float) -> float:
        if progress < self.warmup:
            return max(progress / self.warmup, 1e-3)
        fall = (progress - self.warmup) / max(1.0 - self.warmup, 1e-12)
        return self.floor + (1.0 - self.floor) * (1.0 - min(fall, 1.0))
