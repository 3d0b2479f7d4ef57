"""How sure a score is, and whether two captioners differ: the bootstrap over pairs (Efron 1979; Koehn 2004).

Pairs are drawn again and again with replacement, each with all its records where a protocol scores these one by one.
BLEU and METEOR of a drawn corpus come from its summed counts, the others are means over what it holds; CIDEr-D keeps
the word weights of the whole corpus. The captioner and its training are held fixed: an interval says how far another
draw of test pairs could move the score, not another seed of training.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np

from lightning_idc.metrics.captions import FROM_STATISTICS, Scores, some
from lightning_idc.metrics.corpus import Floats, Ints
from lightning_idc.utils.errors import ConfigError, DataError

_BLOCK = 64
_AT_ONCE = 16_000_000  # weights of pairs in one block, 128 MB
_CACHED = 50_000  # draws that are counted at once where a corpus has fewer pairs
_ONE = np.uint16(1)
# smaller differences come from the order of sums and from what keeps BLEU from dividing by 0
_NOTHING = 1e-6


@dataclass(frozen=True)
class Interval:
    """Ends of a confidence interval of a score, times 100."""

    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """What the second captioner has over the first by one metric, times 100.

    Args:
        first: score of the first.
        second: score of the second.
        difference: second minus first.
        low: end of its confidence interval.
        high: end of its confidence interval.
        p: two-sided, that pairs without any difference would look so or more so.
        wins: pairs on which the second scores higher.
        losses: pairs on which it scores lower.
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
    """A p for readers, with three digits; none is 0.

    Example:
        >>> p_text(0.0421), p_text(0.0002)
        ('0.042', '<0.001')
    """
    return f"{p:.3f}" if p >= 0.001 else "<0.001"


def bootstrap(scores: Scores, samples: int = 1000, confidence: float = 0.95, seed: int = 0) -> dict[str, Interval]:
    """Confidence interval of every metric, by percentiles.

    Args:
        scores: of a corpus.
        samples: corpora that are drawn.
        confidence: share of them within the interval.
        seed: of the draws.

    Raises:
        ConfigError: the arguments make no interval.
        DataError: there are fewer than two pairs.

    Example:
        >>> from lightning_idc.metrics import score_captions
        >>> references = {str(n): ["the cube moved"] for n in range(20)}
        >>> scores = score_captions({id: "the cube moved" for id in references}, references, ["ROUGE-L"])
        >>> bootstrap(scores)["ROUGE-L"].low == scores.values["ROUGE-L"]
        True
    """
    _check(scores, samples, confidence)
    drawn = _concatenated(_drawn(scores, weights) for weights in _weights(scores, samples, seed))
    tail = (1 - confidence) / 2
    return {name: Interval(*map(float, np.quantile(values, [tail, 1 - tail]))) for name, values in drawn.items()}


def compare(
    first: Scores, second: Scores, samples: int = 1000, confidence: float = 0.95, seed: int = 0
) -> dict[str, Difference]:
    """Compare two captioners on the same pairs, drawing the same pairs for both.

    Args:
        first: scores of one.
        second: scores of the other, against the same references.
        samples: corpora that are drawn.
        confidence: share of them within the interval.
        seed: of the draws.

    Raises:
        DataError: the two were scored on different pairs.

    Example:
        >>> from lightning_idc.metrics import score_captions
        >>> references = {str(n): ["the cube moved"] for n in range(20)}
        >>> first = score_captions({id: "a ball" for id in references}, references, ["ROUGE-L"])
        >>> second = score_captions({id: "the cube" for id in references}, references, ["ROUGE-L"])
        >>> found = compare(first, second)["ROUGE-L"]
        >>> found.wins, found.losses, found.p < 0.01
        (20, 0, True)
    """
    _check(first, samples, confidence)
    one, other = (first.ids, first.references, first.records_of), (second.ids, second.references, second.records_of)
    if one != other:
        odd = sorted(set(first.ids) ^ set(second.ids))
        raise DataError(
            f"two captioners are compared on the same pairs and references only; {len(odd)} pairs are scored for one "
            f"of them{': ' + some(odd) if odd else ', but their order or their references differ'}"
        )
    names = [name for name in first.values if name in second.values]
    pair_of = _pair_of(first)
    tail = (1 - confidence) / 2
    drawn = _concatenated(
        {name: there[name] - here[name] for name in names}
        for weights in _weights(first, samples, seed)
        for here, there in [(_drawn(first, weights), _drawn(second, weights))]
    )
    found = {}
    for name, differences in drawn.items():
        low, high = map(float, np.quantile(differences, [tail, 1 - tail]))
        # the draws themselves count as one more, so that no p is 0
        beyond = min((differences <= _NOTHING).sum(), (differences >= -_NOTHING).sum())
        p = min(1.0, 2 * (float(beyond) + 1) / (samples + 1))
        here, there = first.values[name], second.values[name]
        gains = _by_pair(second.per_pair[name] - first.per_pair[name], pair_of)
        wins, losses = int((gains > _NOTHING).sum()), int((gains < -_NOTHING).sum())
        found[name] = Difference(here, there, there - here, low, high, p, wins, losses)
    return found


def _check(scores: Scores, samples: int, confidence: float) -> None:
    if scores.pairs < 2:
        raise DataError("one pair alone has no confidence interval; score at least two")
    if samples < 1 or not 0 < confidence < 1:
        raise ConfigError(f"{samples} samples and a confidence of {confidence} make no interval; take 1000 and 0.95")


def _pair_of(scores: Scores) -> Ints | None:
    """Place of its pair for each record, in the order of the pairs' first records; None where each pair has one."""
    if not scores.records_of:
        return None
    pairs = [scores.records_of[id] for id in scores.ids]
    places = {pair: place for place, pair in enumerate(dict.fromkeys(pairs))}
    return np.array([places[pair] for pair in pairs])


def _by_pair(values: Floats, pair_of: Ints | None) -> Floats:
    """Means over the records of each pair."""
    if pair_of is None:
        return values
    return np.bincount(pair_of, values) / np.bincount(pair_of)


def _weights(scores: Scores, samples: int, seed: int) -> Iterator[Floats]:
    """How often each record is drawn, which is how often its pair is: blocks of ``(block, records)``."""
    pair_of = _pair_of(scores)
    for block in _draws(scores.pairs, samples, seed):
        yield block if pair_of is None else block[:, pair_of]


def _draws(pairs: int, samples: int, seed: int) -> Iterator[Floats]:
    """How often each pair is drawn, a block of corpora at a time, ``(block, P)``; the next block takes its place."""
    generator = np.random.default_rng(seed)
    most = max(1, min(_BLOCK, _AT_ONCE // pairs))
    few = max(1, _CACHED // pairs)
    weights = np.empty((min(most, samples), pairs))
    for start in range(0, samples, most):
        block = weights[: samples - start]
        for first in range(0, len(block), few):
            rows = block[first : first + few]
            drawn = generator.integers(pairs, size=rows.shape) + np.arange(len(rows))[:, None] * pairs
            counts = np.zeros(rows.size, np.uint16)  # a quarter of what bincount fills
            np.add.at(counts, drawn.ravel(), _ONE)
            rows[:] = counts.reshape(rows.shape)
        yield block


def _drawn(scores: Scores, weights: Floats) -> dict[str, Floats]:
    """Scores of drawn corpora by metric, ``(block,)``."""
    found: dict[str, Floats] = {}
    for metric, statistics in scores.statistics.items():
        names, combine = FROM_STATISTICS[metric]
        found |= dict(zip(names, 100 * combine(statistics @ weights.T), strict=True))
    for name, values in scores.per_pair.items():
        if name not in found:
            # a drawn corpus has as many pairs, and more or fewer records
            records = weights.sum(1) if scores.records_of else scores.records
            found[name] = weights @ values / records
    return {name: found[name] for name in scores.values}


def _concatenated(blocks: Iterator[dict[str, Floats]]) -> dict[str, Floats]:
    every = list(blocks)
    return {name: np.concatenate([block[name] for block in every]) for name in every[0]}
