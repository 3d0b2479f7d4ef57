"""Confidence intervals and comparisons of captioners by the bootstrap over pairs (Efron 1979; Koehn 2004).

Pairs are resampled with replacement, each with all its records where a protocol scores records one by one. BLEU and
METEOR of a resampled corpus come from its summed counts, other metrics are means; CIDEr-D keeps the document
frequencies of the full corpus. The captioner and its training are fixed: an interval covers other samples of test
pairs, not other training seeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

import numpy as np

from lightning_idc.metrics.captions import FROM_STATISTICS, Scores, first_ids
from lightning_idc.metrics.corpus import Floats, Ints
from lightning_idc.utils.bounds import OpenShare, PositiveInt, check_arguments
from lightning_idc.utils.errors import DataError

_MAX_BLOCK = 64
_MAX_WEIGHTS = 16_000_000  # per block: 128 MB
_MAX_CACHED = 50_000  # samples counted at once where a corpus has fewer pairs
_ONE = np.uint16(1)
# smaller differences come from rounding and from the epsilons in BLEU
_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Interval:
    """Confidence interval of a score, times 100."""

    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """Difference of two captioners by one metric, times 100.

    Args:
        first: score of the first.
        second: score of the second.
        difference: second minus first.
        low: lower end of the confidence interval.
        high: upper end of the confidence interval.
        p: two-sided p value.
        wins: pairs on which the second scores higher.
        losses: pairs on which the second scores lower.
    """

    first: float
    second: float
    difference: float
    low: float
    high: float
    p: float
    wins: int
    losses: int

    def as_dict(self) -> dict[str, float]:
        """Plain values."""
        return asdict(self)


def p_text(p: float) -> str:
    """A p value with three digits, never 0.

    Example:
        >>> p_text(0.0421), p_text(0.0002)
        ('0.042', '<0.001')
    """
    return f"{p:.3f}" if p >= 0.001 else "<0.001"


def bootstrap(scores: Scores, samples: int = 1000, confidence: float = 0.95, seed: int = 0) -> dict[str, Interval]:
    """Percentile confidence interval of every metric.

    Args:
        scores: scores of a corpus.
        samples: number of resampled corpora.
        confidence: fraction of samples within the interval.
        seed: random seed.

    Raises:
        ConfigError: an argument is out of range.
        DataError: there are fewer than two pairs.

    Example:
        >>> from lightning_idc.metrics import score_captions
        >>> references = {str(n): ["the cube moved"] for n in range(20)}
        >>> scores = score_captions({id: "the cube moved" for id in references}, references, ["ROUGE-L"])
        >>> bootstrap(scores)["ROUGE-L"].low == scores.values["ROUGE-L"]
        True
    """
    _check(scores, samples, confidence)
    sampled = _concatenated(_resampled(scores, weights) for weights in _record_weights(scores, samples, seed))
    tail = (1 - confidence) / 2
    return {name: Interval(*map(float, np.quantile(values, [tail, 1 - tail]))) for name, values in sampled.items()}


def compare(
    first: Scores, second: Scores, samples: int = 1000, confidence: float = 0.95, seed: int = 0
) -> dict[str, Difference]:
    """Compare two captioners on the same resampled pairs.

    Args:
        first: scores of one captioner.
        second: scores of the other, against the same references.
        samples: number of resampled corpora.
        confidence: fraction of samples within the interval.
        seed: random seed.

    Raises:
        DataError: the two were scored on different pairs.

    Example:
        >>> from lightning_idc.metrics import score_captions
        >>> references = {str(n): ["the cube moved"] for n in range(20)}
        >>> first = score_captions({id: "a ball" for id in references}, references, ["ROUGE-L"])
        >>> second = score_captions({id: "the cube" for id in references}, references, ["ROUGE-L"])
        >>> difference = compare(first, second)["ROUGE-L"]
        >>> difference.wins, difference.losses, difference.p < 0.01
        (20, 0, True)
    """
    _check(first, samples, confidence)
    if _scored_on(first) != _scored_on(second):
        unmatched = sorted(set(first.ids) ^ set(second.ids))
        reason = f"{len(unmatched)} pairs are scored for only one of them: {first_ids(unmatched)}"
        raise DataError(
            "two captioners can be compared only on the same pairs and references; "
            + (reason if unmatched else "their order or their references differ")
        )
    names = [name for name in first.values if name in second.values]
    pair_of = _pair_of(first)
    tail = (1 - confidence) / 2
    differences_of_samples = _concatenated(
        {name: second_values[name] - first_values[name] for name in names}
        for weights in _record_weights(first, samples, seed)
        for first_values, second_values in [(_resampled(first, weights), _resampled(second, weights))]
    )
    differences_of = {}
    for name, differences in differences_of_samples.items():
        low, high = map(float, np.quantile(differences, [tail, 1 - tail]))
        # the observed corpus counts as one additional sample, so that no p is 0
        num_in_tail = min((differences <= _TOLERANCE).sum(), (differences >= -_TOLERANCE).sum())
        p = min(1.0, 2 * (float(num_in_tail) + 1) / (samples + 1))
        gains = _by_pair(second.per_pair[name] - first.per_pair[name], pair_of)
        wins, losses = int((gains > _TOLERANCE).sum()), int((gains < -_TOLERANCE).sum())
        differences_of[name] = Difference(
            first=first.values[name],
            second=second.values[name],
            difference=second.values[name] - first.values[name],
            low=low,
            high=high,
            p=p,
            wins=wins,
            losses=losses,
        )
    return differences_of


def _scored_on(scores: Scores) -> tuple[list[str], int, Mapping[str, str]]:
    return scores.ids, scores.references, scores.records_of


def _check(scores: Scores, samples: PositiveInt, confidence: OpenShare) -> None:
    check_arguments(_check, locals())
    if scores.pairs < 2:
        raise DataError("there is only one pair; a confidence interval needs at least two")


def _pair_of(scores: Scores) -> Ints | None:
    """Index of the pair of each record, in the order of the pairs' first records; None where each pair has one."""
    if not scores.records_of:
        return None
    pairs = [scores.records_of[id] for id in scores.ids]
    index_of = {pair: index for index, pair in enumerate(dict.fromkeys(pairs))}
    return np.array([index_of[pair] for pair in pairs])


def _by_pair(values: Floats, pair_of: Ints | None) -> Floats:
    """Means over the records of each pair."""
    if pair_of is None:
        return values
    return np.bincount(pair_of, values) / np.bincount(pair_of)


def _record_weights(scores: Scores, samples: int, seed: int) -> Iterator[Floats]:
    """How often the pair of each record is sampled, in blocks of corpora ``(block, records)``."""
    pair_of = _pair_of(scores)
    for block in _pair_weights(scores.pairs, samples, seed):
        yield block if pair_of is None else block[:, pair_of]


def _pair_weights(pairs: int, samples: int, seed: int) -> Iterator[Floats]:
    """How often each pair is sampled, in blocks of corpora ``(block, P)``; all blocks share one buffer."""
    generator = np.random.default_rng(seed)
    block_size = max(1, min(_MAX_BLOCK, _MAX_WEIGHTS // pairs))
    rows_at_once = max(1, _MAX_CACHED // pairs)
    weights = np.empty((min(block_size, samples), pairs))
    for start in range(0, samples, block_size):
        block = weights[: samples - start]
        for first in range(0, len(block), rows_at_once):
            rows = block[first : first + rows_at_once]
            indices = generator.integers(pairs, size=rows.shape) + np.arange(len(rows))[:, None] * pairs
            counts = np.zeros(rows.size, np.uint16)  # a quarter of the memory that bincount would fill
            np.add.at(counts, indices.ravel(), _ONE)
            rows[:] = counts.reshape(rows.shape)
        yield block


def _resampled(scores: Scores, weights: Floats) -> dict[str, Floats]:
    """Scores of resampled corpora by metric, ``(block,)``."""
    values_of: dict[str, Floats] = {}
    for metric, statistics in scores.statistics.items():
        names, combine = FROM_STATISTICS[metric]
        values_of |= dict(zip(names, 100 * combine(statistics @ weights.T), strict=True))
    for name, values in scores.per_pair.items():
        if name not in values_of:
            # the number of pairs is fixed, that of records is not
            records = weights.sum(1) if scores.records_of else scores.records
            values_of[name] = weights @ values / records
    return {name: values_of[name] for name in scores.values}


def _concatenated(blocks: Iterator[dict[str, Floats]]) -> dict[str, Floats]:
    parts = list(blocks)
    return {name: np.concatenate([block[name] for block in parts]) for name in parts[0]}
