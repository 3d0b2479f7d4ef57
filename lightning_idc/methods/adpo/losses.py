"""Losses on preferences between captions of one pair: plain functions of log-probabilities.

A caption is one sample: its log-probability is the sum over its tokens, as in DPO (Rafailov et al. 2023) and in
ADPO's Eq. 2. :func:`per_token` makes means of them, which IPO was proposed with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

PreferenceLoss = Callable[[Tensor, float], Tensor]
"""Loss of each comparison given its log-ratio and beta.

The log-ratio of a caption is its log-probability under the policy minus that under the reference policy; that of a
comparison is the chosen caption's minus the rejected one's.
"""


def dpo(log_ratio: Tensor, beta: float, label_smoothing: float = 0.0) -> Tensor:
    """Minus the log-probability that the chosen caption wins (DPO; ADPO Eq. 2 with its loss).

    Args:
        log_ratio: log-ratio of the chosen caption minus that of the rejected one, any shape.
        beta: inverse temperature of the implied reward.
        label_smoothing: probability that a preference is the wrong way round.
    """
    margin = beta * log_ratio
    return -(1 - label_smoothing) * F.logsigmoid(margin) - label_smoothing * F.logsigmoid(-margin)


@dataclass(frozen=True)
class SmoothedDPO:
    """:func:`dpo` with label smoothing, for recipes.

    Args:
        label_smoothing: probability that a preference is the wrong way round.
    """

    label_smoothing: float = 0.1

    def __call__(self, log_ratio: Tensor, beta: float) -> Tensor:
        return dpo(log_ratio, beta, self.label_smoothing)


def ipo(log_ratio: Tensor, beta: float) -> Tensor:
    """Squared distance of the log-ratio from 1 / (2 beta) (IPO, Azar et al. 2023, Eq. 17).

    It has a finite optimum, so a preference that is already certain pushes no further.

    Args:
        log_ratio: log-ratio of the chosen caption minus that of the rejected one, any shape.
        beta: the smaller, the farther apart the two shall be.
    """
    return (log_ratio - 1 / (2 * beta)).square()


def per_token(scores: Tensor, mask: Tensor) -> Tensor:
    """Mean log-probability per token from sums.

    Args:
        scores: summed log-probabilities ``(B, K)``.
        mask: bool ``(B, K, T)``, True at the tokens that were summed.
    """
    return scores / mask.sum(-1).clamp(min=1)


def mean_of_means(values: Tensor, present: Tensor) -> Tensor:
    """Mean over pairs of the mean over their captions, so that accumulated steps equal one big step.

    Args:
        values: ``(B, K)``.
        present: bool ``(B, K)``, False at padding.
    """
    counted = torch.where(present, values, torch.zeros_like(values))
    return (counted.sum(1) / present.sum(1).clamp(min=1)).mean()


def divergence(policy: Tensor, reference: Tensor) -> Tensor:
    """Half the squared log-ratio of every caption: a proxy of the KL divergence that is never negative.

    Schulman's k2 estimator. It is a proxy because the captions come from the data, not from the policy.
    """
    return (policy - reference).square() / 2
