"""The equations of policy optimisation as functions of token log-probabilities ``(B, K, T)``.

Shapes: B pairs, K sampled captions per pair, T tokens.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from lightning_idc.models.distributed import mean_over_processes

Level = Literal["token", "sequence"]
Average = Literal["sample", "token", "constant"]
MIN_COUNT = 1e-6
"""Divisor where there are no samples or tokens, whose losses sum to 0."""


def importance_ratio(policy: Tensor, old: Tensor, mask: Tensor, level: Level = "token") -> Tensor:
    """Probability of each token under the policy over that at sampling time.

    Args:
        policy: log-probabilities, ``(B, K, T)``.
        old: log-probabilities at sampling time.
        mask: bool ``(B, K, T)``, True where a token counts.
        level: ``token`` (GRPO), or ``sequence``, ``(B, K, 1)``: the geometric mean over a caption's tokens (GSPO,
            Zheng et al. 2025).

    Example:
        >>> importance_ratio(torch.zeros(1, 1, 2), torch.zeros(1, 1, 2), torch.ones(1, 1, 2).bool(), "sequence")
        tensor([[[1.]]])
    """
    log_ratio = policy - old
    if level == "token":
        return log_ratio.exp()
    return ((log_ratio * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)).exp()


def clipped_surrogate(ratio: Tensor, advantages: Tensor, low: float = 0.2, high: float | None = None) -> Tensor:
    """Minus the smaller of the ratio and the clipped ratio, each times the advantage (PPO, Schulman et al. 2017).

    Args:
        ratio: of :func:`importance_ratio`.
        advantages: ``(B, K)``.
        low: the ratio is clipped at 1 - low.
        high: the ratio is clipped at 1 + high; ``low`` when None. DAPO's clip-higher is a ``high`` above ``low``.

    Example:
        >>> clipped_surrogate(torch.tensor([[[1.5]]]), torch.tensor([[2.0]]))
        tensor([[[-2.4000]]])
    """
    advantages = advantages[..., None]
    clipped = ratio.clamp(1 - low, 1 + (low if high is None else high))
    return -torch.min(ratio * advantages, clipped * advantages)


def is_clipped(ratio: Tensor, advantages: Tensor, low: float = 0.2, high: float | None = None) -> Tensor:
    """Where :func:`clipped_surrogate` has no gradient because the ratio is clipped."""
    advantages = advantages[..., None]
    above = 1 + (low if high is None else high)
    return ((ratio < 1 - low) & (advantages < 0)) | ((ratio > above) & (advantages > 0))


def kl_k3(policy: Tensor, reference: Tensor) -> Tensor:
    """Unbiased estimate of the KL divergence to a reference that is never negative (Schulman's k3), of each token.

    Args:
        policy: log-probabilities of tokens sampled from the policy, any shape.
        reference: log-probabilities under the reference policy.

    Example:
        >>> kl_k3(torch.tensor(-1.0), torch.tensor(-1.0))
        tensor(0.)
    """
    log_ratio = reference - policy
    return log_ratio.exp() - log_ratio - 1


def average(
    losses: Tensor, mask: Tensor, kind: Average, pair_mask: Tensor | None = None, length: int | None = None
) -> Tensor:
    """Mean loss of a batch, scaled such that the mean over processes equals one process with all pairs.

    Batches whose gradients are accumulated have equal weight, whatever their number of tokens or pairs; ``token`` and
    ``pair_mask`` then differ from one large batch.

    Args:
        losses: loss of each token, ``(B, K, T)``, or of each caption, ``(B, K, 1)``.
        mask: bool ``(B, K, T)``, True where a token counts.
        kind: ``sample``: mean over samples of the mean over tokens (GRPO); ``token``: mean over all tokens (DAPO);
            ``constant``: mean over samples of the sum of tokens divided by ``length`` (Dr. GRPO).
        pair_mask: bool ``(B,)``, False for pairs that do not count; None where all count.
        length: divisor of ``constant``.
    """
    pair_mask = mask.new_ones(len(mask)) if pair_mask is None else pair_mask
    masked = losses * (mask & pair_mask[:, None, None])
    # means over processes, which may be below 1 where few processes have a pair that counts
    samples = mean_over_processes(pair_mask.sum() * float(mask.shape[1])).clamp(min=MIN_COUNT)
    if kind == "sample":
        return (masked.sum(-1) / mask.sum(-1).clamp(min=1)).sum() / samples
    if kind == "token":
        return masked.sum() / mean_over_processes((mask & pair_mask[:, None, None]).sum().float()).clamp(min=MIN_COUNT)
    assert length is not None
    return masked.sum() / (samples * length)
