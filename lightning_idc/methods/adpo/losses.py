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
"""Function of comparisons and beta that returns the loss of each comparison, ``(B, K)``."""


def preference_probability(reward: Tensor, other_reward: Tensor) -> Tensor:
    """Probability that one caption is preferred to another, by the rewards of both (Bradley, Terry and Luce).

    ADPO Eq. 1

    Args:
        reward: reward of one caption, any shape.
        other_reward: reward of the other caption, the same shape.

    Example:
        >>> preference_probability(torch.tensor(2.0), torch.tensor(2.0))
        tensor(0.5000)
    """
    return torch.sigmoid(reward - other_reward)


def margin(comparison: Comparison, beta: float) -> Tensor:
    """Difference M of the implied rewards of the chosen and the rejected caption, ``(B, K)``.

    ADPO Eq. 2

    The same expression with negatives drawn by the retriever is

    ADPO Eq. 4

    Args:
        comparison: chosen and rejected captions.
        beta: inverse temperature of the implied reward.

    Example:
        >>> logps, ref_logps = torch.tensor([[-1.0, -9.0]]), torch.tensor([[-2.0, -4.0]])  # chosen, rejected
        >>> margin(Comparison.from_logps(logps, ref_logps, lengths=torch.tensor([[3, 3]])), beta=0.5)
        tensor([[3.]])
    """
    return beta * comparison.logits


def margin_excess(comparison: Comparison, beta: float) -> Tensor:
    """M minus the margin of the data (HAE-DPO), ``(B, K)``; M alone where the data has no margin.

    Args:
        comparison: chosen and rejected captions.
        beta: inverse temperature of the implied reward.

    Example:
        >>> zeros, lengths = torch.zeros(1, 2), torch.ones(1, 2)
        >>> margin_excess(Comparison.from_logps(zeros, zeros, lengths, margin=torch.tensor([[0.5]])), beta=0.1)
        tensor([[-0.5000]])
    """
    implied = margin(comparison, beta)
    return implied if comparison.margin is None else implied - comparison.margin


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
        >>> dpo(Comparison.from_logps(torch.zeros(1, 2), torch.zeros(1, 2), torch.ones(1, 2)), beta=0.1)
        tensor([[0.6931]])
    """
    margins = margin_excess(comparison, beta)
    return -(1 - label_smoothing) * F.logsigmoid(margins) - label_smoothing * F.logsigmoid(-margins)


def adversarial_reward(losses: Tensor) -> Tensor:
    """Reward of the retriever for each negative: the policy's loss, which the retriever maximises.

    ADPO Eq. 6

    Args:
        losses: loss of each comparison; no gradient flows back to the policy.
    """
    return losses.detach().float()


def k2_estimator(logps: Tensor, ref_logps: Tensor) -> Tensor:
    """Half the squared log-ratio of each caption (Schulman's k2): a non-negative proxy of the KL divergence.

    It is a proxy because the captions come from the data, not from the policy.
    """
    return (logps - ref_logps).square() / 2
