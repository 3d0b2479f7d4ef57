"""REINFORCE: the gradient of an expected reward through a discrete choice (Williams 1992; ADPO Eq. 7)."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn

from lightning_idc.models.distributed import mean_over_processes
from lightning_idc.utils.bounds import ShareBelowOne, check_arguments


def reinforce(log_probs: Tensor, rewards: Tensor, baseline: Tensor | float = 0.0) -> Tensor:
    """Loss whose gradient is minus the Monte Carlo estimate of the reward's, so that descending it ascends the reward.

    ADPO Eq. 7

    Algorithm 1 of ADPO descends R * grad log q in its line 12, which would look for the easiest negatives; Eq. 5 to 7
    and the text say ascent, which this is.

    Args:
        log_probs: log-probability of each choice, any shape, with gradient.
        rewards: reward of each choice, the same shape; no gradient flows into them.
        baseline: value to subtract from the rewards; the estimate stays unbiased if it does not depend on the choice.
    """
    return -((rewards - baseline).detach() * log_probs).mean()


class Baseline(nn.Module):
    """Value that is subtracted from rewards to lower the variance of REINFORCE."""

    @abstractmethod
    def forward(self, rewards: Tensor) -> Tensor:
        """Baseline of each of ``rewards (N,)``, which must not depend on that reward itself."""


class NoBaseline(Baseline):
    """No baseline: the rewards unchanged."""

    def forward(self, rewards: Tensor) -> Tensor:
        return torch.zeros_like(rewards)


class RunningMean(Baseline):
    """Exponential mean of the rewards of earlier steps; in the first step the mean of the other rewards of the batch.

    Args:
        momentum: weight of earlier steps, below 1.

    Raises:
        ConfigError: the momentum is out of range.
    """

    mean: Tensor
    weight: Tensor

    def __init__(self, momentum: ShareBelowOne = 0.9) -> None:
        check_arguments(RunningMean.__init__, locals())
        super().__init__()
        self.momentum = momentum
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("weight", torch.zeros(()))

    def forward(self, rewards: Tensor) -> Tensor:
        # divided by the weight so far, as the initial zero is not a reward
        mean = self.mean / self.weight.clamp(min=1e-12)
        # without a baseline the first step would push all choices that were drawn in one direction
        baseline = torch.where(self.weight > 0, mean, leave_one_out(rewards.detach()))
        # over all processes, so that their baselines agree; a process may have no reward in a step
        parts = torch.stack([rewards.detach().sum(), torch.ones_like(rewards).sum()])
        total, count = mean_over_processes(parts).to(self.mean.dtype)
        momentum = torch.where(count > 0, self.momentum, 1.0)
        self.mean.mul_(momentum).add_((1 - momentum) * total / count.clamp(min=1e-6))
        self.weight.mul_(momentum).add_(1 - momentum)
        return baseline


class LeaveOneOut(Baseline):
    """Mean reward of the other choices of the batch (Kool et al. 2019); zero for a single one."""

    def forward(self, rewards: Tensor) -> Tensor:
        return leave_one_out(rewards)


def leave_one_out(rewards: Tensor) -> Tensor:
    """Mean of the other rewards, ``(N,)``; zero for a single one."""
    return (rewards.sum() - rewards) / max(1, len(rewards) - 1)


def entropy(log_probs: Tensor) -> Tensor:
    """Entropy in nats of distributions given as log-probabilities over the last dimension; -inf is impossible.

    Its exponential is the effective number of choices.
    """
    return -(log_probs.exp() * log_probs.clamp(min=torch.finfo(log_probs.dtype).min)).sum(-1)
