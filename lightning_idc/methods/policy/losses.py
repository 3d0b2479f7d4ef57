"""The equations of policy optimisation as functions of log-probabilities of tokens, ``(B, K, T)``."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from lightning_idc.models.distributed import mean_over_processes

Level = Literal["token", "sequence"]
Average = Literal["sample", "token", "constant"]
FEWEST = 1e-6
"""In place of no samples or tokens, whose losses sum to 0."""


def importance_ratio(policy: Tensor, old: Tensor, mask: Tensor, level: Level = "token") -> Tensor:
    """How much likelier a token has become since it was drawn.

    Args:
        policy: log-probabilities, ``(B, K, T)``.
        old: those at the time of the drawing.
        mask: bool ``(B, K, T)``, True where a token counts.
        level: of each token (GRPO), or, ``(B, K, 1)``, the geometric mean over a caption's tokens (GSPO, Zheng et al.
            2025).

    Example:
        >>> importance_ratio(torch.zeros(1, 1, 2), torch.zeros(1, 1, 2), torch.ones(1, 1, 2).bool(), "sequence")
        tensor([[[1.]]])
    """
    change = policy - old
    if level == "token":
        return change.exp()
    return ((change * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)).exp()


def clipped_surrogate(ratio: Tensor, advantages: Tensor, low: float = 0.2, high: float | None = None) -> Tensor:
    """Minus the smaller of the ratio and the clipped ratio, each times the advantage (PPO, Schulman et al. 2017).

    Args:
        ratio: of :func:`importance_ratio`.
        advantages: ``(B, K)``.
        low: the ratio counts from 1 minus this.
        high: and up to 1 plus this; ``low`` when None. Larger than ``low`` it is DAPO's clip-higher.

    Example:
        >>> clipped_surrogate(torch.tensor([[[1.5]]]), torch.tensor([[2.0]]))
        tensor([[[-2.4000]]])
    """
    advantages = advantages[..., None]
    clipped = ratio.clamp(1 - low, 1 + (low if high is None else high))
    return -torch.min(ratio * advantages, clipped * advantages)


def is_clipped(ratio: Tensor, advantages: Tensor, low: float = 0.2, high: float | None = None) -> Tensor:
    """Where :func:`clipped_surrogate` gives no gradient, since the ratio has gone far enough already."""
    advantages = advantages[..., None]
    above = 1 + (low if high is None else high)
    return ((ratio < 1 - low) & (advantages < 0)) | ((ratio > above) & (advantages > 0))


def kl_k3(policy: Tensor, reference: Tensor) -> Tensor:
    """Unbiased estimate of the KL divergence to a reference that is never negative (Schulman's k3), of each token.

    Args:
        policy: log-probabilities of what the policy has drawn, any shape.
        reference: the same under the reference policy.

    Example:
        >>> kl_k3(torch.tensor(-1.0), torch.tensor(-1.0))
        tensor(0.)
    """
    change = reference - policy
    return change.exp() - change - 1


def average(
    losses: Tensor, mask: Tensor, kind: Average, kept: Tensor | None = None, length: int | None = None
) -> Tensor:
    """Mean loss of a batch, such that the mean over processes is that of one process with all pairs.

    Batches whose gradients are accumulated weigh the same, however many tokens or kept pairs each has; ``token`` and
    ``kept`` then differ from one large batch.

    Args:
        losses: of each token, ``(B, K, T)``, or ``(B, K, 1)``.
        mask: bool ``(B, K, T)``, True where a token counts.
        kind: ``sample``: mean over samples of the mean over tokens (GRPO); ``token``: over all tokens, so that long
            captions count as long ones (DAPO); ``constant``: over samples of the sum over ``length`` (Dr. GRPO).
        kept: bool ``(B,)``, False for pairs that do not count; None where all do.
        length: of ``constant``.
    """
    kept = mask.new_ones(len(mask)) if kept is None else kept
    counted = losses * (mask & kept[:, None, None])
    # means over processes, which are below 1 where few of many have something that counts
    samples = mean_over_processes(kept.sum() * float(mask.shape[1])).clamp(min=FEWEST)
    if kind == "sample":
        return (counted.sum(-1) / mask.sum(-1).clamp(min=1)).sum() / samples
    if kind == "token":
        return counted.sum() / mean_over_processes((mask & kept[:, None, None]).sum().float()).clamp(min=FEWEST)
    assert length is not None
    return counted.sum() / (samples * length)
