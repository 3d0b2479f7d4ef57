"""Advantages: the reward of a sampled caption minus a baseline.

Shapes: B pairs, K sampled captions per pair.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor

from lightning_idc.models.distributed import get_rank_world_size, mean_over_processes

EPSILON = 1e-4
"""Added to standard deviations, as in TRL."""
Scale = Literal["group", "batch", "none"]


def self_critical(rewards: Tensor, greedy: Tensor) -> Tensor:
    """Rewards minus the reward of the greedily decoded caption of the pair (SCST, Rennie et al. 2017, Eq. 9).

    Args:
        rewards: rewards of the samples, ``(B, K)``.
        greedy: reward of the greedy caption, ``(B, 1)``.

    Example:
        >>> import torch
        >>> self_critical(torch.tensor([[3.0, 1.0]]), torch.tensor([[2.0]]))
        tensor([[ 1., -1.]])
    """
    return rewards - greedy


def group_relative(rewards: Tensor, scale: Scale = "group") -> Tensor:
    """Rewards minus their mean over a pair's samples, divided by their standard deviation (GRPO, Shao et al. 2024).

    Args:
        rewards: ``(B, K)``.
        scale: whether the standard deviation is over the samples of the pair (``group``) or of the step (``batch``);
            ``none`` does not divide.

    Example:
        >>> import torch
        >>> group_relative(torch.tensor([[1.0, 1.0, 4.0]]), scale="none")
        tensor([[-1., -1.,  2.]])
    """
    centred = rewards - rewards.mean(1, keepdim=True)
    if scale == "none":
        return centred
    deviation = rewards.std(1, keepdim=True) if scale == "group" else batch_std(rewards)
    return centred / (deviation + EPSILON)


def dr_grpo(rewards: Tensor) -> Tensor:
    """Rewards minus their mean over a pair's samples, without a division (Dr. GRPO, Liu et al. 2025).

    Args:
        rewards: ``(B, K)``.
    """
    return group_relative(rewards, scale="none")


def leave_one_out(rewards: Tensor) -> Tensor:
    """Rewards minus the mean of the pair's other samples (RLOO, Kool et al. 2019, Ahmadian et al. 2024).

    Args:
        rewards: ``(B, K)``, K at least 2.

    Example:
        >>> import torch
        >>> leave_one_out(torch.tensor([[1.0, 1.0, 4.0]]))
        tensor([[-1.5000, -1.5000,  3.0000]])
    """
    count = rewards.shape[1]
    return (rewards - rewards.mean(1, keepdim=True)) * count / (count - 1)


def batch_std(rewards: Tensor) -> Tensor:
    """Standard deviation of the rewards of a step over all processes; each must call this with the same shape."""
    mean = mean_over_processes(rewards.mean())
    count = rewards.numel() * get_rank_world_size()[1]
    return (mean_over_processes((rewards - mean).square().mean()) * count / max(1, count - 1)).sqrt()


def has_spread(rewards: Tensor) -> Tensor:
    """Bool ``(B,)``, True for a pair whose samples have different rewards.

    The advantages of the other pairs are 0; DAPO leaves them out (Yu et al. 2025).

    Args:
        rewards: ``(B, K)``.
    """
    return rewards.amax(1) - rewards.amin(1) > 1e-6


ADVANTAGES: dict[str, Callable[[Tensor], Tensor]] = {
    "group": group_relative,
    "batch": lambda rewards: group_relative(rewards, "batch"),
    "none": dr_grpo,
    "leave_one_out": leave_one_out,
}
"""Advantage functions by the values of ``GroupRelative(scale=...)``."""
