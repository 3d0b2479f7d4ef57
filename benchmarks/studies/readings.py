"""Statistics of a difference over trainings: its mean, Student's interval, and its reading."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from scipy import stats

from lightning_idc.metrics.baselines import BELOW_BASELINE, IDENTICAL, UNDECIDED
from lightning_idc.report.comparison import METRIC

MIN_TRAININGS = 3
"""Trainings from which on a difference may be decided. Test pairs do not replace them: a bootstrap over pairs does not
know how another training would have ended."""
KINDS_OF_CHANGE = 5
"""Types of change in rendered pairs: color, texture, add, drop and move, equally often."""
UNCHANGED = 1 / 6
"""Share of unchanged pairs in most studies."""
MIN_GAP = 1 / 3
"""Smallest gap between a captioner's score and its score on identical images, as a fraction of the score."""


def spread(values: Sequence[float]) -> list[float]:
    """Mean and standard deviation."""
    return [statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0]


def over_seeds(differences: Sequence[float]) -> dict[str, Any]:
    """Mean of the trainings' differences with Student's 95 % interval, which needs at least two trainings."""
    mean, deviation = spread(differences)
    count = len(differences)
    half = float(stats.t.ppf(0.975, count - 1)) * deviation / count**0.5 if count > 1 else None
    return {
        "mean": mean,
        "interval": None if half is None else [mean - half, mean + half],
        "each_seed": list(differences),
    }


def chance_of(unchanged: float) -> float:
    """Percentage of types of change that are right if one type is always named.

    Args:
        unchanged: share of unchanged pairs, which count as a type.
    """
    return 100 * max(unchanged, (1 - unchanged) / KINDS_OF_CHANGE)


def uses_images(trainings: Sequence[Mapping[str, Any]], unchanged: float = UNCHANGED, measure: str = METRIC) -> bool:
    """Whether a captioner compares the two images, so that a method can show an effect on it.

    Its score is above that of identical images by more than a third, and it names the type of change more often than by
    chance, with the interval over trainings where types are known.

    Args:
        trainings: results of one row, with ``score``, ``baselines``, ``facts`` and ``identical_facts``.
        unchanged: share of unchanged pairs.
        measure: CIDEr-D, or the name of a fact whose percentage is the score.
    """
    score = statistics.mean(score_of(training, measure) for training in trainings)
    identical = [value for training in trainings if (value := identical_of(training, measure)) is not None]
    if len(identical) < len(trainings) or score - statistics.mean(identical) <= MIN_GAP * score:
        return False
    types = [training["facts"]["type"] for training in trainings if "type" in training["facts"]]
    if not types:
        return True
    interval = over_seeds(types)["interval"]
    return interval is not None and interval[0] > chance_of(unchanged)


def score_of(training: Mapping[str, Any], measure: str) -> float:
    """CIDEr-D of a training, or the percentage of a fact."""
    return float(training["score"] if measure == METRIC else training["facts"][measure])


def identical_of(training: Mapping[str, Any], measure: str) -> float | None:
    """The same of its captions of identical images; None if it was not measured."""
    values = training["baselines"] if measure == METRIC else training.get("identical_facts", {})
    return values.get(IDENTICAL if measure == METRIC else measure)


def is_below(trainings: Sequence[Mapping[str, Any]], measure: str = METRIC) -> bool:
    """Whether a row is not above each of its baselines, with the interval over pairs, in every training.

    Args:
        trainings: results of one row.
        measure: CIDEr-D, or a fact, whose baseline is that of identical images.
    """
    if measure == METRIC:
        differences = [over for training in trainings for over in training["over_baselines"].values()]
    else:
        of_facts = [training.get("facts_over_identical", {}) for training in trainings]
        differences = [of_fact[measure] for of_fact in of_facts if measure in of_fact]
    return any(difference["low"] <= 0 for difference in differences)


def reading_of(gain: Mapping[str, Any], below: bool, compares: bool) -> str:
    """Reading of a difference: ``higher``, ``lower``, ``not decided`` or ``below the baseline``.

    Args:
        gain: result of :func:`over_seeds`, with the interval over test pairs as ``pairs``; None if it was not stored.
        below: whether the row is not above its baselines in every training.
        compares: whether one of the compared captioners uses the images, see :func:`uses_images`.
    """
    if below:
        return BELOW_BASELINE
    if len(gain["each_seed"]) < MIN_TRAININGS or not compares:
        return UNDECIDED
    ends = [interval for interval in (gain["pairs"], gain["interval"]) if interval]
    if min(low for low, _ in ends) > 0:
        return "higher"
    return "lower" if max(high for _, high in ends) < 0 else UNDECIDED
