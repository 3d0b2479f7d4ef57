"""Preference losses as functions of a :class:`Comparison` and beta, with the values of TRL's ``DPOTrainer``.

=====================  ===========================
TRL's ``loss_type``    here
=====================  ===========================
``sigmoid``            :func:`~lightning_idc.methods.adpo.losses.dpo`; with ``label_smoothing``, :class:`SmoothedDPO`
``robust``             :class:`RobustDPO`
``hinge``              :func:`hinge`
``ipo``                :class:`IPO` (means per token), :func:`ipo` (sums, as in the paper)
``exo_pair``           :class:`EXO`
``nca_pair``           :func:`nca`
``bco_pair``           :func:`bco`
``sppo_hard``          :func:`sppo`
``aot_unpaired``       :class:`AOT` with ``paired=False``
``aot``                :class:`AOT`
``apo_zero``           :func:`apo_zero`
``apo_down``           :func:`apo_down`
``discopop``           :class:`DiscoPOP`
``sft``                :func:`sft`
=====================  ===========================

:class:`SimPO`, :class:`CPO` and :func:`orpo` are ``reference_free``: they ignore the reference policy. Several losses
with ``loss_weights``, such as MPO's, are a :class:`WeightedSum`.

Each function returns one loss per comparison, ``(B, K)``. Losses with options are frozen dataclasses, so that a recipe
can name their class and its arguments. Losses of M alone (``dpo``, ``hinge``, ``SmoothedDPO``, ``RobustDPO``, ``EXO``,
``DiscoPOP``) subtract the preference margin of the data; the others raise a ConfigError if there is one.
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
    """Caption loss: mean negative log-probability per token of the chosen caption. For use in weighted sums."""
    return -comparison.chosen_logps / comparison.chosen_lengths.clamp(min=1)


def hinge(comparison: Comparison, beta: float) -> Tensor:
    """Hinge loss: the amount by which M is below 1 (SLiC; Zhao et al. 2023)."""
    return torch.relu(1 - margin_excess(comparison, beta))


def ipo(comparison: Comparison, beta: float) -> Tensor:
    """Squared distance of the log-ratio of sums from 1 / (2 beta) (IPO, Azar et al. 2023, Eq. 17).

    Its optimum is finite, so a preference that is already certain is not pushed further. TRL's ``ipo`` compares means
    per token; see :class:`IPO`.
    """
    _check_no_margin(comparison, "ipo")
    return (comparison.logits - 1 / (2 * beta)).square()


@dataclass(frozen=True)
class IPO:
    """:func:`ipo` on means per token, as in TRL, or on sums.

    Args:
        per_token: whether means per token are compared.
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
        margins, epsilon = margin_excess(comparison, beta), self.label_smoothing
        return (epsilon * F.logsigmoid(-margins) - (1 - epsilon) * F.logsigmoid(margins)) / (1 - 2 * epsilon)


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
        margins, epsilon = margin_excess(comparison, beta), self.label_smoothing
        kl_chosen = margins.sigmoid() * (F.logsigmoid(margins) - math.log(1 - epsilon))
        kl_rejected = (-margins).sigmoid() * (F.logsigmoid(-margins) - math.log(epsilon))
        return kl_chosen + kl_rejected


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
        margins = margin_excess(comparison, beta)
        modulation = torch.sigmoid(margins / self.temperature)
        return -F.logsigmoid(margins) * (1 - modulation) + torch.exp(-margins) * modulation


def nca(comparison: Comparison, beta: float) -> Tensor:
    """Noise-contrastive alignment of the reward of each caption (NCA, Chen et al. 2024)."""
    _check_no_margin(comparison, "nca")
    chosen_rewards, rejected_rewards = beta * comparison.chosen_logratios, beta * comparison.rejected_logratios
    noise = F.logsigmoid(-chosen_rewards) + F.logsigmoid(-rejected_rewards)
    return -F.logsigmoid(chosen_rewards) - noise / 2


def sppo(comparison: Comparison, beta: float) -> Tensor:
    """Squared distance of the log-ratios from plus and minus 1 / (2 beta) (SPPO with hard labels, Wu et al. 2024)."""
    _check_no_margin(comparison, "sppo")
    target = 0.5 / beta
    return (comparison.chosen_logratios - target).square() + (comparison.rejected_logratios + target).square()


def apo_zero(comparison: Comparison, beta: float) -> Tensor:
    """Raise chosen and lower rejected captions (APO, D'Oosterlinck et al. 2024).

    For chosen captions that are better than the policy's own.
    """
    _check_no_margin(comparison, "apo_zero")
    return torch.sigmoid(-beta * comparison.chosen_logratios) + torch.sigmoid(beta * comparison.rejected_logratios)


def apo_down(comparison: Comparison, beta: float) -> Tensor:
    """Lower both captions, the rejected one more (APO, D'Oosterlinck et al. 2024).

    For chosen captions that are worse than the policy's own.
    """
    _check_no_margin(comparison, "apo_down")
    return torch.sigmoid(beta * comparison.chosen_logratios) + torch.sigmoid(-margin(comparison, beta))


def bco(comparison: Comparison, beta: float) -> Tensor:
    """Classify captions as chosen or rejected by their rewards (Jung et al. 2024).

    Like TRL's DPOTrainer, and unlike its BCOTrainer, without a shift of the rewards.
    """
    _check_no_margin(comparison, "bco")
    return -F.logsigmoid(beta * comparison.chosen_logratios) - F.logsigmoid(-beta * comparison.rejected_logratios)


@dataclass(frozen=True)
class AOT:
    """Stochastic dominance: compares the sorted values of a batch, not those of one pair (Melnyk et al. 2024).

    Args:
        paired: whether the preferences of policy and reference are sorted and compared (TRL's ``aot``); if not, the
            log-ratios of chosen and rejected captions are (``aot_unpaired``).
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
            higher = comparison.chosen_logps - comparison.rejected_logps  # (B, K)
            lower = comparison.ref_chosen_logps - comparison.ref_rejected_logps
        else:
            higher, lower = comparison.chosen_logratios, comparison.rejected_logratios
        margins = beta * (higher[present].sort().values - lower[present].sort().values)  # (N,)
        epsilon = self.label_smoothing
        losses = -(1 - epsilon) * F.logsigmoid(margins) - epsilon * F.logsigmoid(-margins)
        return torch.zeros_like(higher).masked_scatter(present, losses.to(higher.dtype))


@dataclass(frozen=True)
class SimPO:
    """DPO on means per token, without a reference policy and with a target margin (SimPO, Meng et al. 2024).

    Use it with ``NoReference`` and a beta of 2 or more.

    Args:
        gamma: target margin: beta times the difference of the means shall exceed it.
        label_smoothing: probability that a preference is labelled the wrong way round.
    """

    gamma: float = 0.5
    label_smoothing: ShareBelowOne = 0.0

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, comparison: Comparison, beta: float) -> Tensor:
        _check_no_margin(comparison, "SimPO")
        means = comparison.per_token()
        margins, epsilon = beta * (means.chosen_logps - means.rejected_logps) - self.gamma, self.label_smoothing
        return -(1 - epsilon) * F.logsigmoid(margins) - epsilon * F.logsigmoid(-margins)


@dataclass(frozen=True)
class CPO:
    """DPO without a reference policy, plus the caption loss (CPO, Xu et al. 2024).

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
        margins, epsilon = beta * (comparison.chosen_logps - comparison.rejected_logps), self.label_smoothing
        preference = -(1 - epsilon) * F.logsigmoid(margins) - epsilon * F.logsigmoid(-margins)
        return preference + self.alpha * sft(comparison)


def odds_ratio(comparison: Comparison, beta: float) -> Tensor:
    """Odds-ratio term of ORPO: -beta log sigmoid of the log odds ratio, with means per token as log-probabilities."""
    _check_no_margin(comparison, "odds_ratio")
    means = comparison.per_token()
    chosen_log_odds = means.chosen_logps - _log1mexp(means.chosen_logps)
    rejected_log_odds = means.rejected_logps - _log1mexp(means.rejected_logps)
    return -beta * F.logsigmoid(chosen_log_odds - rejected_log_odds)


def orpo(comparison: Comparison, beta: float) -> Tensor:
    """Caption loss plus :func:`odds_ratio`, without a reference policy (ORPO, Hong et al. 2024)."""
    return sft(comparison) + odds_ratio(comparison, beta)


def _check_no_margin(comparison: Comparison, name: str) -> None:
    """Raise if the data has margins, which the loss would ignore."""
    if comparison.margin is not None:
        raise ConfigError(
            f"the loss {name} does not support preference margins of the data; use dpo, hinge, SmoothedDPO, RobustDPO, "
            "EXO or DiscoPOP, or leave out `margin` and `error_margins` of the negatives"
        )


def _log1mexp(log_prob: Tensor) -> Tensor:
    """log(1 - p) as a function of log p; a probability of 1 is rounded down, so that the result is finite."""
    return torch.log1p(-torch.exp(log_prob.clamp(max=-torch.finfo(log_prob.dtype).eps)))


class WeightedSum:
    """Weighted sum of losses, such as MPO's: ``dpo`` 0.8, ``bco`` 0.2 and ``sft`` 1 (Wang et al. 2024).

    Args:
        losses: loss functions.
        weights: factor of each loss.

    Raises:
        ConfigError: the numbers of losses and weights differ.
    """

    def __init__(self, losses: Sequence[Callable[[Comparison, float], Tensor]], weights: Sequence[float]) -> None:
        if len(losses) != len(weights) or not losses:
            raise ConfigError(f"{len(losses)} losses have {len(weights)} weights; expected one weight per loss")
        self.losses: list[PreferenceLoss] = list(losses)
        self.weights = list(weights)

    def __call__(self, comparison: Comparison, beta: float) -> Tensor:
        terms = [weight * loss(comparison, beta) for loss, weight in zip(self.losses, self.weights, strict=True)]
        return torch.stack(terms).sum(0)
