"""The equations of ADPO and DPO as functions of log-probabilities; other losses are in ``preference_losses.py``.

A caption is one sample: its log-probability is the sum over its tokens, as in DPO (Rafailov et al. 2023).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from lightning_idc.methods.adpo.comparison import Comparison

PreferenceLoss = Callable[[Comparison, float], Tensor]
"""Loss of each comparison ``(B, K)``, given the comparisons and beta."""


def preference_probability(reward: Tensor, other: Tensor) -> Tensor:
    """Probability that one caption is preferred to another, by the rewards of both (Bradley, Terry and Luce).

    ADPO Eq. 1

    Args:
        reward: reward of one caption, any shape.
        other: reward of the other caption, the same shape.

    Example:
        >>> preference_probability(torch.tensor(2.0), torch.tensor(2.0))
        tensor(0.5000)
    """
    return torch.sigmoid(reward - other)


def margin(comparison: Comparison, beta: float) -> Tensor:
    """Difference M of the implied rewards of the chosen and the rejected caption, ``(B, K)``.

    ADPO Eq. 2

    With negatives that a retriever draws it is the same expression:

    ADPO Eq. 4

    Args:
        comparison: chosen and rejected captions.
        beta: inverse temperature of the implied reward.

    Example:
        >>> both = Comparison.of(torch.tensor([[-1.0, -9.0]]), torch.tensor([[-2.0, -4.0]]), torch.tensor([[3, 3]]))
        >>> margin(both, 0.5)
        tensor([[3.]])
    """
    return beta * comparison.log_ratio


def margin_excess(comparison: Comparison, beta: float) -> Tensor:
    """M minus the margin of the data (HAE-DPO), ``(B, K)``; M alone where the data has no margin.

    Args:
        comparison: chosen and rejected captions.
        beta: inverse temperature of the implied reward.

    Example:
        >>> both = Comparison.of(torch.zeros(1, 2), torch.zeros(1, 2), torch.ones(1, 2), margin=torch.tensor([[0.5]]))
        >>> margin_excess(both, 0.1)
        tensor([[-0.5000]])
    """
    value = margin(comparison, beta)
    return value if comparison.margin is None else value - comparison.margin


def dpo(comparison: Comparison, beta: float, label_smoothing: float = 0.0) -> Tensor:
    """Minus the log-probability that the chosen caption wins, ``(B, K)``.

    With negatives that a retriever draws this is the adversarial loss, whose mean over pairs is:

    ADPO Eq. 5

    A margin of the data is subtracted from M (:func:`margin_excess`), so that a worse mistake must be rejected by more.

    Args:
        comparison: chosen and rejected captions.
        beta: inverse temperature of the implied reward.
        label_smoothing: probability that a preference is labelled the wrong way round.

    Example:
        >>> both = Comparison.of(torch.zeros(1, 2), torch.zeros(1, 2), torch.ones(1, 2))
        >>> dpo(both, 0.1)
        tensor([[0.6931]])
    """
    value = margin_excess(comparison, beta)
    return -(1 - label_smoothing) * F.logsigmoid(value) - label_smoothing * F.logsigmoid(-value)


def adversarial_reward(losses: Tensor) -> Tensor:
    """Reward of the retriever for each negative: the loss of the policy, which the retriever raises.

    ADPO Eq. 6

    Args:
        losses: loss of each comparison; no gradient flows back to the policy.
    """
    return losses.detach().float()


def k2_estimator(policy: Tensor, reference: Tensor) -> Tensor:
    """Half the squared log-ratio of every caption: a non-negative proxy of the KL divergence.

    Schulman's k2 estimator. It is a proxy because the captions come from the data, not from the policy.
    """
    return (policy - reference).square() / 2
