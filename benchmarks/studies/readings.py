"""Statistics of a difference over trainings: its mean, Student's interval, and its reading."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from scipy import stats

from lightning_idc.metrics.baselines import BELOW_BASELINE, IDENTICAL, UNDECIDED

MIN_TRAININGS = 3
"""Trainings from which on a difference may be decided. Test pairs do not replace them: a bootstrap over pairs does not
know how another training would have ended."""
CHANCE = 100 / 6
"""Percentage of the types of change that are right by chance in rendered pairs, of which a sixth is unchanged."""
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


def uses_images(trainings: Sequence[Mapping[str, Any]], chance: float = CHANCE) -> bool:
    """Whether a captioner compares the two images, so that a method can show an effect on it.

    Its score is above that of identical images by more than a third, and it names the type of change more often than by
    chance, with the interval over trainings where types are known.

    Args:
        trainings: results of one row, with ``score``, ``baselines`` and ``facts``.
        chance: percentage of types that are right by chance.
    """
    score = statistics.mean(training["score"] for training in trainings)
    identical = [training["baselines"].get(IDENTICAL) for training in trainings]
    if None in identical or score - statistics.mean(identical) <= MIN_GAP * score:
        return False
    types = [training["facts"]["type"] for training in trainings if "type" in training["facts"]]
    if not types:
        return True
    interval = over_seeds(types)["interval"]
    return interval is not None and interval[0] > chance


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
