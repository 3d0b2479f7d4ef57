"""Statistics of a difference over seeds: its mean, Student's interval, and its reading."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from scipy import stats

from lightning_idc.metrics.baselines import BELOW_BASELINE, UNDECIDED

MANY_PAIRS, MANY_SEEDS = 2000, 5
"""Test pairs from which on their bootstrap decides by itself; it does not know how another seed would have trained.
With fewer pairs, seeds from which on a difference may count as decided."""


def spread(values: Sequence[float]) -> list[float]:
    """Mean and standard deviation."""
    return [statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0]


def over_seeds(differences: Sequence[float]) -> dict[str, Any]:
    """Mean of the seeds' differences with Student's 95 % interval, which needs at least two seeds."""
    mean, deviation = spread(differences)
    count = len(differences)
    half = float(stats.t.ppf(0.975, count - 1)) * deviation / count**0.5 if count > 1 else None
    return {
        "mean": mean,
        "interval": None if half is None else [mean - half, mean + half],
        "each_seed": list(differences),
    }


def reading_of(gain: Mapping[str, Any], below: bool, test_pairs: int) -> str:
    """Reading of a difference: ``higher``, ``lower``, ``not decided`` or ``below the baseline``.

    Args:
        gain: result of :func:`over_seeds`, with the interval over test pairs as ``pairs``; None if it was not stored.
        below: whether the row is not above its baselines in every seed.
        test_pairs: number of test pairs.
    """
    if below:
        return BELOW_BASELINE
    pairs, seeds = gain["pairs"], gain["interval"]
    enough = (pairs and test_pairs >= MANY_PAIRS) or (seeds and len(gain["each_seed"]) >= MANY_SEEDS)
    ends = [interval for interval in (pairs, seeds) if interval]
    if enough and min(low for low, _ in ends) > 0:
        return "higher"
    return "lower" if enough and max(high for _, high in ends) < 0 else UNDECIDED
