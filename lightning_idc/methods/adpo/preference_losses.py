"""Preference losses under the names of TRL, equal to its values: functions of a :class:`Comparison` and beta.

Losses with options are frozen dataclasses, so that recipes can write them as ``class_path`` and ``init_args``. Each
returns one loss per comparison, ``(B, K)``. A margin of the data is subtracted from M by the losses that depend on M
alone (``dpo``, ``hinge``, ``SmoothedDPO``, ``RobustDPO``, ``EXO``, ``DiscoPOP``); the others raise a ConfigError.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from lightning_idc.methods.adpo.comparison import Comparison
from lightning_idc.methods.adpo.losses import PreferenceLoss, dpo, margin, margin_excess
from lightning_idc.utils.bounds import OpenShare, PositiveFloat, ShareBelowHalf, ShareBelowOne, check_fields
from lightning_idc.utils.errors import ConfigError


def sft(comparison: Comparison, beta: float = 0.0) -> Tensor:
    """Mean negative log-probability per token of the chosen caption: the caption loss, for weighted sums."""
    return -comparison.chosen / comparison.chosen_lengths.clamp(min=1)


def hinge(comparison: Comparison, beta: float) -> Tensor:
    """How far M stays below 1 (SLiC; Zhao et al. 2023)."""
    return torch.relu(1 - margin_excess(comparison, beta))


def ipo(comparison: Comparison, beta: float) -> Tensor:
    """Squared distance of the log-ratio of sums from 1 / (2 beta) (IPO, Azar et al. 2023, Eq. 17).

    It has a finite optimum, so a preference that is already certain pushes no further. TRL's ``ipo`` compares means
    per token: :class:`IPO`.
    """
    _check_no_margin(comparison, "ipo")
    return (comparison.log_ratio - 1 / (2 * beta)).square()


@dataclass(frozen=True)
class IPO:
    """:func:`ipo` on means per token, as in TRL, or on sums.

    Args:
        per_token: compare means per token.
    """

    per_token: bool = True

    def __call__(self, comparison: Comparison, beta: float) -> Tensor:
        return ipo(comparison.per_token() if self.per_token else comparison, beta)


@dataclass(frozen=True)
class SmoothedDPO:
    """DPO with label smoothing (cDPO; Mitchell 2023).

    Args:
        label_smoothing: probability that a preference is labelled the wrong way round.
    """

    label_smoothing: ShareBelowOne = 0.1

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, comparison: Comparison, beta: float) -> Tensor:
        return dpo(comparison, beta, self.label_smoothing)


@dataclass(frozen=True)
class RobustDPO:
    """DPO that is unbiased when some preferences are labelled the wrong way round (Chowdhury et al. 2024).

    Args:
        label_smoothing: probability that a preference is labelled the wrong way round; below one half.
    """

    label_smoothing: ShareBelowHalf = 0.1

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, comparison: Comparison, beta: float) -> Tensor:
        logits, epsilon = margin_excess(comparison, beta), self.label_smoothing
        return (epsilon * F.logsigmoid(-logits) - (1 - epsilon) * F.logsigmoid(logits)) / (1 - 2 * epsilon)


@dataclass(frozen=True)
class EXO:
    """Reverse KL divergence from the smoothed preference to the policy's (EXO, Ji et al. 2024, Eq. 16).

    Args:
        label_smoothing: probability that a preference is labelled the wrong way round; more than 0.
    """

    label_smoothing: OpenShare = 1e-3

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, comparison: Comparison, beta: float) -> Tensor:
        logits, epsilon = margin_excess(comparison, beta), self.label_smoothing
        won = logits.sigmoid() * (F.logsigmoid(logits) - math.log(1 - epsilon))
        return won + (-logits).sigmoid() * (F.logsigmoid(-logits) - math.log(epsilon))


@dataclass(frozen=True)
class DiscoPOP:
    """Logistic and exponential loss, blended by the margin (DiscoPOP, Lu et al. 2024).

    Args:
        temperature: width of the blend.
    """

    temperature: PositiveFloat = 0.05

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, comparison: Comparison, beta: float) -> Tensor:
        logits = margin_excess(comparison, beta)
        blend = torch.sigmoid(logits / self.temperature)
        return -F.logsigmoid(logits) * (1 - blend) + torch.exp(-logits) * blend


def nca(comparison: Comparison, beta: float) -> Tensor:
    """Noise-contrastive alignment of each caption's own reward (NCA, Chen et al. 2024)."""
    _check_no_margin(comparison, "nca")
    chosen, rejected = beta * comparison.chosen_ratio, beta * comparison.rejected_ratio
    return -F.logsigmoid(chosen) - (F.logsigmoid(-chosen) + F.logsigmoid(-rejected)) / 2


def sppo(comparison: Comparison, beta: float) -> Tensor:
    """Log-ratios towards plus and minus 1 / (2 beta) (SPPO with hard labels, Wu et al. 2024)."""
    _check_no_margin(comparison, "sppo")
    goal = 0.5 / beta
    return (comparison.chosen_ratio - goal).square() + (comparison.rejected_ratio + goal).square()


def apo_zero(comparison: Comparison, beta: float) -> Tensor:
    """Chosen up, rejected down; for chosen captions better than the policy's (APO, D'Oosterlinck et al. 2024)."""
    _check_no_margin(comparison, "apo_zero")
    return torch.sigmoid(-beta * comparison.chosen_ratio) + torch.sigmoid(beta * comparison.rejected_ratio)


def apo_down(comparison: Comparison, beta: float) -> Tensor:
    """Both down, rejected more; for chosen captions worse than the policy's (APO, D'Oosterlinck et al. 2024)."""
    _check_no_margin(comparison, "apo_down")
    return torch.sigmoid(beta * comparison.chosen_ratio) + torch.sigmoid(-margin(comparison, beta))


def bco(comparison: Comparison, beta: float) -> Tensor:
    """A classifier of chosen against rejected captions by their own rewards (TRL's ``bco_pair``; Jung et al. 2024)."""
    _check_no_margin(comparison, "bco")
    return -F.logsigmoid(beta * comparison.chosen_ratio) - F.logsigmoid(-beta * comparison.rejected_ratio)


@dataclass(frozen=True)
class AOT:
    """Stochastic dominance: compares sorted log-ratios of the batch, not those of one pair (AOT, Melnyk et al. 2024).

    Args:
        paired: sort the policy's and the reference's preferences (TRL's ``aot``); else the log-ratios of chosen and of
            rejected captions (``aot_unpaired``).
        label_smoothing: probability that a preference is labelled the wrong way round.
    """

    paired: bool = True
    label_smoothing: ShareBelowOne = 0.0

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, comparison: Comparison, beta: float) -> Tensor:
        _check_no_margin(comparison, "AOT")
        present = comparison.present
        if self.paired:
            first = comparison.chosen - comparison.rejected
            second = comparison.reference_chosen - comparison.reference_rejected
        else:
            first, second = comparison.chosen_ratio, comparison.rejected_ratio
        logits = beta * (first[present].sort().values - second[present].sort().values)
        epsilon = self.label_smoothing
        losses = -(1 - epsilon) * F.logsigmoid(logits) - epsilon * F.logsigmoid(-logits)
        return torch.zeros_like(first).masked_scatter(present, losses.to(first.dtype))


@dataclass(frozen=True)
class SimPO:
    """Means per token without a reference policy, farther apart than a target margin (SimPO, Meng et al. 2024).

    Use it with ``NoReference`` and a beta of 2 or more.

    Args:
        gamma: target of beta times the difference of the means.
        label_smoothing: probability that a preference is labelled the wrong way round.
    """

    gamma: float = 0.5
    label_smoothing: ShareBelowOne = 0.0

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, comparison: Comparison, beta: float) -> Tensor:
        _check_no_margin(comparison, "SimPO")
        means = comparison.per_token()
        logits, epsilon = beta * (means.chosen - means.rejected) - self.gamma, self.label_smoothing
        return -(1 - epsilon) * F.logsigmoid(logits) - epsilon * F.logsigmoid(-logits)


@dataclass(frozen=True)
class CPO:
    """Summed log-probabilities without a reference policy, and the caption loss (CPO, Xu et al. 2024).

    Args:
        alpha: weight of the caption loss.
        label_smoothing: probability that a preference is labelled the wrong way round.
    """

    alpha: float = 1.0
    label_smoothing: ShareBelowOne = 0.0

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, comparison: Comparison, beta: float) -> Tensor:
        _check_no_margin(comparison, "CPO")
        logits, epsilon = beta * (comparison.chosen - comparison.rejected), self.label_smoothing
        return -(1 - epsilon) * F.logsigmoid(logits) - epsilon * F.logsigmoid(-logits) + self.alpha * sft(comparison)


def odds_ratio(comparison: Comparison, beta: float) -> Tensor:
    """Beta times minus the log-sigmoid of the log odds ratio of the means per token (the ratio term of ORPO)."""
    _check_no_margin(comparison, "odds_ratio")
    means = comparison.per_token()
    log_odds = (means.chosen - _log1mexp(means.chosen)) - (means.rejected - _log1mexp(means.rejected))
    return -beta * F.logsigmoid(log_odds)


def orpo(comparison: Comparison, beta: float) -> Tensor:
    """The caption loss and the odds ratio, without a reference policy (ORPO, Hong et al. 2024)."""
    return sft(comparison) + odds_ratio(comparison, beta)


def _check_no_margin(comparison: Comparison, name: str) -> None:
    """Raise if the data has margins, which the loss would ignore."""
    if comparison.margin is not None:
        raise ConfigError(
            f"the loss {name} does not support a margin of the data; take dpo, hinge, SmoothedDPO, RobustDPO, EXO or "
            "DiscoPOP, or leave out `margin` and `error_margins` of the negatives"
        )


def _log1mexp(log_prob: Tensor) -> Tensor:
    """log(1 - p) of log p; a probability of 1 is taken for the next smaller number."""
    return torch.log1p(-torch.exp(log_prob.clamp(max=-torch.finfo(log_prob.dtype).eps)))


class WeightedSum:
    """Several losses at once, such as MPO's: ``dpo`` 0.8, ``bco`` 0.2 and ``sft`` 1 (Wang et al. 2024).

    Args:
        losses: loss functions.
        weights: factor of each loss.

    Raises:
        ConfigError: there are not as many weights as losses.
    """

    def __init__(self, losses: Sequence[Callable[[Comparison, float], Tensor]], weights: Sequence[float]) -> None:
        if len(losses) != len(weights) or not losses:
            raise ConfigError(f"{len(losses)} losses have {len(weights)} weights; give one weight for each loss")
        self.losses: list[PreferenceLoss] = list(losses)
        self.weights = list(weights)

    def __call__(self, comparison: Comparison, beta: float) -> Tensor:
        terms = [weight * loss(comparison, beta) for loss, weight in zip(self.losses, self.weights, strict=True)]
        return torch.stack(terms).sum(0)
