"""Results of a metric that may be unavailable: scores of METEOR, or the reason why there are none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from lightning_idc.metrics.corpus import Floats


@dataclass(frozen=True)
class NotComputed:
    """The reason why a metric has no value."""

    reason: str

    def __str__(self) -> str:
        return f"not computed: {self.reason}"


class MeteorScores(NamedTuple):
    """METEOR of a corpus.

    Args:
        corpus: score of the corpus, 0 to 1, which is not a mean over pairs.
        per_pair: score of each pair, 0 to 1, ``(P,)``.
        statistics: counts of each pair, whose sums give the score of any set of pairs, ``(23, P)``: words of the
            candidate and of the reference, function words of both; for exact, stem, synonym and paraphrase matches the
            matched content words of both, then function words of both; chunks, matched words of both.
    """

    corpus: float
    per_pair: Floats
    statistics: Floats
