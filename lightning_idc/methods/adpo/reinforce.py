"""REINFORCE: the gradient of an expected reward through a discrete choice (Williams 1992; ADPO Eq. 7)."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn

from lightning_idc.models.distributed import mean_over_processes
from lightning_idc.utils.bounds import ShareBelowOne, check_arguments


def reinforce(log_probs: Tensor, rewards: Tensor, baseline: Tensor | float = 0.0) -> Tensor:
    """Policy-gradient loss: descending it ascends the Monte Carlo estimate of the expected reward.

    ADPO Eq. 7

    Line 12 of ADPO's Algorithm 1 descends R * grad log q, which would make the retriever prefer the easiest negatives.
    This loss ascends it, as Eq. 5 to 7 and the text of the paper do.

    Args:
        log_probs: log-probability of each choice, any shape, with gradient.
        rewards: reward of each choice, the same shape; no gradient flows into them.
        baseline: value to subtract from the rewards; the estimate stays unbiased if it does not depend on the choice.
    """
    return -((rewards - baseline).detach() * log_probs).mean()


class Baseline(nn.Module):
    """Value to subtract from the rewards, which lowers the variance of REINFORCE."""

    @abstractmethod
    def forward(self, rewards: Tensor) -> Tensor:
        """Baselines ``(N,)`` of rewards ``(N,)``; the baseline of a choice must not depend on its own reward."""


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
        # with a baseline of zero the first step would raise all drawn choices alike
        baseline = torch.where(self.weight > 0, mean, leave_one_out(rewards.detach()))
        # averaged over all processes, so that their baselines agree; a process may have no reward in a step
        sum_and_count = torch.stack([rewards.detach().sum(), torch.ones_like(rewards).sum()])
        total, count = mean_over_processes(sum_and_count).to(self.mean.dtype)
        momentum = torch.where(count > 0, self.momentum, 1.0)
        self.mean.mul_(momentum).add_((1 - momentum) * total / count.clamp(min=1e-6))
        self.weight.mul_(momentum).add_(1 - momentum)
        return baseline


class LeaveOneOut(Baseline):
    """Mean reward of the other choices of the batch (Kool et al. 2019); zero for a single choice."""

    def forward(self, rewards: Tensor) -> Tensor:
        return leave_one_out(rewards)


def leave_one_out(rewards: Tensor) -> Tensor:
    """For each of ``rewards (N,)``, the mean of the others ``(N,)``; zero for a single reward."""
    return (rewards.sum() - rewards) / max(1, len(rewards) - 1)


def entropy(log_probs: Tensor) -> Tensor:
    """Entropy, in nats, of categorical distributions over the last dimension.

    Its exponential is the effective number of choices.

    Args:
        log_probs: log-probabilities ``(..., N)``; -inf for an impossible choice.
    """
    return -(log_probs.exp() * log_probs.clamp(min=torch.finfo(log_probs.dtype).min)).sum(-1)
