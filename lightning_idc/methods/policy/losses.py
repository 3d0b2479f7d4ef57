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
"""Smallest divisor; a sum without samples or tokens is 0 and stays 0."""


def importance_ratio(log_probs: Tensor, old_log_probs: Tensor, mask: Tensor, level: Level = "token") -> Tensor:
    """Probability of each token under the policy divided by its probability at sampling time.

    Args:
        log_probs: log-probabilities under the policy, ``(B, K, T)``.
        old_log_probs: log-probabilities at sampling time, ``(B, K, T)``.
        mask: bool ``(B, K, T)``, True at tokens that count.
        level: ``token`` (GRPO) for a ratio of each token, ``(B, K, T)``; ``sequence`` (GSPO, Zheng et al. 2025) for
            their geometric mean over each caption, ``(B, K, 1)``.

    Example:
        >>> importance_ratio(torch.zeros(1, 1, 2), torch.zeros(1, 1, 2), torch.ones(1, 1, 2).bool(), "sequence")
        tensor([[[1.]]])
    """
    log_ratio = log_probs - old_log_probs
    if level == "token":
        return log_ratio.exp()
    return ((log_ratio * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)).exp()


def clipped_surrogate(
    ratio: Tensor, advantages: Tensor, clip_low: float = 0.2, clip_high: float | None = None
) -> Tensor:
    """Clipped surrogate loss of PPO (Schulman et al. 2017): -min(ratio * advantage, clipped ratio * advantage).

    Args:
        ratio: result of :func:`importance_ratio`, ``(B, K, T)`` or ``(B, K, 1)``.
        advantages: ``(B, K)``.
        clip_low: the ratio is clipped at 1 - clip_low.
        clip_high: the ratio is clipped at 1 + clip_high; ``clip_low`` when None. DAPO's clip-higher has a ``clip_high``
            above ``clip_low``.

    Example:
        >>> clipped_surrogate(torch.tensor([[[1.5]]]), torch.tensor([[2.0]]))
        tensor([[[-2.4000]]])
    """
    advantages = advantages[..., None]
    clipped = ratio.clamp(1 - clip_low, 1 + (clip_low if clip_high is None else clip_high))
    return -torch.min(ratio * advantages, clipped * advantages)


def is_clipped(ratio: Tensor, advantages: Tensor, clip_low: float = 0.2, clip_high: float | None = None) -> Tensor:
    """Bool like ``ratio``, True where :func:`clipped_surrogate` has no gradient because the ratio is clipped."""
    advantages = advantages[..., None]
    upper = 1 + (clip_low if clip_high is None else clip_high)
    return ((ratio < 1 - clip_low) & (advantages < 0)) | ((ratio > upper) & (advantages > 0))


def kl_k3(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """Estimate of the KL divergence to the reference for each token: unbiased and non-negative (Schulman's k3).

    Args:
        log_probs: log-probabilities of tokens sampled from the policy, any shape.
        ref_log_probs: log-probabilities of the same tokens under the reference policy.

    Example:
        >>> kl_k3(torch.tensor(-1.0), torch.tensor(-1.0))
        tensor(0.)
    """
    log_ratio = ref_log_probs - log_probs
    return log_ratio.exp() - log_ratio - 1


def average(
    losses: Tensor, mask: Tensor, averaging: Average, pair_mask: Tensor | None = None, max_length: int | None = None
) -> Tensor:
    """Mean loss of a batch, scaled so that the mean over processes equals one process with all pairs.

    Accumulated batches have equal weight, whatever their number of tokens or pairs. Therefore ``token`` and
    ``pair_mask`` differ slightly between accumulated batches and one large batch.

    Args:
        losses: loss of each token, ``(B, K, T)``, or of each caption, ``(B, K, 1)``.
        mask: bool ``(B, K, T)``, True at tokens that count.
        averaging: TRL's ``loss_type``. ``sample`` (``grpo``): mean over samples of the mean over tokens. ``token``
            (``dapo``): mean over all tokens. ``constant`` (``dr_grpo``): mean over samples of the sum over tokens
            divided by ``max_length``.
        pair_mask: bool ``(B,)``, False for pairs that do not count; all pairs count when None.
        max_length: maximum number of tokens of a caption, the divisor of ``constant``.
    """
    pair_mask = mask.new_ones(len(mask)) if pair_mask is None else pair_mask
    masked = losses * (mask & pair_mask[:, None, None])
    # counts are means over processes, so they can be below 1 if few processes have a pair that counts
    num_samples = mean_over_processes(pair_mask.sum() * float(mask.shape[1])).clamp(min=MIN_COUNT)
    if averaging == "sample":
        return (masked.sum(-1) / mask.sum(-1).clamp(min=1)).sum() / num_samples
    if averaging == "token":
        num_tokens = mean_over_processes((mask & pair_mask[:, None, None]).sum().float()).clamp(min=MIN_COUNT)
        return masked.sum() / num_tokens
    assert max_length is not None
    return masked.sum() / (num_samples * max_length)
