"""Scores of a corpus of captions: one call, every metric, each pair named once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from lightning_idc.metrics import bleu, meteor
from lightning_idc.metrics.cider import cider, cider_d
from lightning_idc.metrics.corpus import Corpus, Floats, ReferenceCounts
from lightning_idc.metrics.meteor import Backend, NotComputed, backend_named, meteor_scores
from lightning_idc.metrics.rouge import rouge_l
from lightning_idc.metrics.spice import spice_scores
from lightning_idc.metrics.tokenizer import ptb_tokenize
from lightning_idc.utils.errors import ConfigError, DataError

T = TypeVar("T")
FAST = ("BLEU", "ROUGE-L", "CIDEr-D")
"""Metrics that need no tables."""
USUAL = ("BLEU", "METEOR", "ROUGE-L", "CIDEr-D")
"""What papers print."""


@dataclass  # not frozen: torchmetrics copies what a Metric computes field by field
class Scores:
    """Scores on the scale that papers print: pycocoevalcap's values times 100, so that CIDEr-D ends at 1000.

    Args:
        values: corpus score by metric.
        per_pair: score of each pair by metric, in the order of ``ids``.
        ids: of what was scored, a pair or one of several records of it.
        references: number of references.
        missing: metrics that were asked for and could not be computed, with the reason.
        statistics: counts of each pair, for metrics whose corpus score is not a mean over pairs, ``(S, P)``.
        backends: what computed a metric, where there is a choice.
        records_of: pair of each id, where a pair has several records; empty where every id is a pair's.
    """

    values: dict[str, float]
    per_pair: dict[str, Floats]
    ids: list[str]
    references: int
    missing: dict[str, str] = field(default_factory=dict)
    statistics: dict[str, Floats] = field(default_factory=dict)
    backends: dict[str, str] = field(default_factory=dict)
    records_of: Mapping[str, str] = field(default_factory=dict)

    @property
    def pairs(self) -> int:
        """Number of pairs."""
        return len({self.records_of[id] for id in self.ids}) if self.records_of else len(self.ids)

    @property
    def records(self) -> int:
        """Number of scored records; that of the pairs where each has one."""
        return len(self.ids)

    def as_dict(self) -> dict[str, float]:
        """Corpus score by metric."""
        return dict(self.values)

    def of_pair(self, id: str) -> dict[str, float]:
        """Scores of one pair by metric."""
        place = self.ids.index(id)
        return {metric: float(values[place]) for metric, values in self.per_pair.items()}


class References:
    """References of a corpus, tokenised and counted once; scoring against them again is several times cheaper.

    Args:
        references: texts by pair id, or (id, texts).
        tokenize: makes tokens of a text; candidates are tokenised in the same way.

    Raises:
        DataError: an id comes twice, a pair has no reference, or one is not text.
    """

    def __init__(
        self,
        references: Mapping[str, Sequence[str]] | Iterable[tuple[str, Sequence[str]]],
        tokenize: Callable[[str], list[str]] = ptb_tokenize,
    ) -> None:
        texts = _by_id(references, "references")
        empty = [id for id, of_pair in texts.items() if isinstance(of_pair, str) or not len(of_pair)]
        if empty:
            raise DataError(
                f"{len(empty)} of {len(texts)} pairs have no list of references: {some(empty)}; "
                "give each pair a list with at least one text"
            )
        self.ids = list(texts)
        self.tokenize = tokenize
        self.counts = ReferenceCounts(
            [[tokenize(as_text(id, text, "reference")) for text in of_pair] for id, of_pair in texts.items()]
        )


@dataclass(frozen=True)
class ScoringResources:
    """What some metrics need beside captions and references.

    Args:
        frequencies: references of another corpus, which say how rare an n-gram is to CIDEr and CIDEr-D; None takes
            the references that are scored.
        corenlp: folder with Stanford CoreNLP's jars, for SPICE.
        judge: says which claims state which differences; see ``difference_list``.
        meteor_backend: python or java; see :func:`~lightning_idc.metrics.meteor.backend_named`.
    """

    frequencies: References | None = None
    corenlp: Path | None = None
    judge: Callable[..., Any] | None = None
    meteor_backend: Backend | None = None

    @property
    def counts(self) -> ReferenceCounts | None:
        """N-grams of the other corpus."""
        return None if self.frequencies is None else self.frequencies.counts


def score_captions(
    candidates: Mapping[str, str] | Iterable[tuple[str, str]],
    references: Mapping[str, Sequence[str]] | References,
    metrics: Sequence[str] = FAST,
    resources: ScoringResources | None = None,
) -> Scores:
    """Score one caption per pair against all references of the pair.

    BLEU, ROUGE-L and CIDEr-D equal pycocoevalcap's given the same tokens. Pairs come in the order of the references.

    Args:
        candidates: caption by pair id, or (id, caption); an empty caption is one that says nothing.
        references: references by pair id; the same ids.
        metrics: of BLEU, METEOR, ROUGE-L, CIDEr-D, CIDEr and SPICE; SPICE needs Java.
        resources: what some metrics need besides.

    Raises:
        ConfigError: a metric is unknown.
        DataError: ids differ or come twice, a pair has no reference, or there is nothing to score.

    Example:
        >>> scores = score_captions({"1": "The cube moved."}, {"1": ["the red cube moved", "the cube moved"]})
        >>> round(scores.values["ROUGE-L"], 1), scores.pairs, scores.references
        (100.0, 1, 2)
    """
    check_metrics(metrics, _MEASURES)
    texts = _by_id(candidates, "captions")
    check_ids(texts, references.ids if isinstance(references, References) else list(references))
    expected = references if isinstance(references, References) else References(references)
    corpus = Corpus([expected.tokenize(as_text(id, texts[id], "caption")) for id in expected.ids], expected.counts)
    scores = Scores({}, {}, list(expected.ids), int(expected.counts.per_pair.sum()))
    for metric in metrics:
        outcome = _MEASURES[metric](corpus, resources or ScoringResources())
        if isinstance(outcome, NotComputed):
            scores.missing[metric] = str(outcome)
            continue
        whole, each, statistics = outcome
        if metric == "METEOR":
            scores.backends[metric] = backend_named((resources or ScoringResources()).meteor_backend)
        scores.values |= {name: 100 * value for name, value in whole.items()}
        scores.per_pair |= {name: 100 * values for name, values in each.items()}
        if statistics is not None:
            scores.statistics[metric] = statistics
    return scores


Measured = tuple[dict[str, float], dict[str, Floats], Floats | None]


def _bleu(corpus: Corpus, resources: ScoringResources) -> Measured:
    statistics = bleu.bleu_statistics(corpus)
    whole, each = bleu.from_statistics(statistics.sum(1)), bleu.from_statistics(statistics)
    names = [f"BLEU-{n + 1}" for n in range(4)]
    return dict(zip(names, map(float, whole), strict=True)), dict(zip(names, each, strict=True)), statistics


def _meteor(corpus: Corpus, resources: ScoringResources) -> Measured | NotComputed:
    outcome = meteor_scores(corpus.candidates, corpus.references.tokens, resources.meteor_backend)
    if isinstance(outcome, NotComputed):
        return outcome
    return {"METEOR": outcome.corpus}, {"METEOR": outcome.per_pair}, outcome.statistics


def _spice(corpus: Corpus, resources: ScoringResources) -> Measured | NotComputed:
    outcome = spice_scores(corpus.candidates, corpus.references.tokens, resources.corenlp)
    return outcome if isinstance(outcome, NotComputed) else _mean("SPICE", *outcome)


def _mean(name: str, whole: float, each: Floats) -> Measured:
    return {name: whole}, {name: each}, None


_MEASURES: dict[str, Callable[[Corpus, ScoringResources], Measured | NotComputed]] = {
    "BLEU": _bleu,
    "METEOR": _meteor,
    "ROUGE-L": lambda corpus, _: _mean("ROUGE-L", *rouge_l(corpus)),
    "CIDEr-D": lambda corpus, resources: _mean("CIDEr-D", *cider_d(corpus, resources.counts)),
    "CIDEr": lambda corpus, resources: _mean("CIDEr", *cider(corpus, resources.counts)),
    "SPICE": _spice,
}
KNOWN = tuple(_MEASURES)
"""Every metric by its name."""
FROM_STATISTICS: dict[str, tuple[list[str], Callable[[Floats], Floats]]] = {
    "BLEU": ([f"BLEU-{n + 1}" for n in range(4)], bleu.from_statistics),
    "METEOR": (["METEOR"], lambda summed: meteor.from_statistics(summed)[None]),
}
"""Scores by summed statistics: their names, and a function from ``(S, ...)`` to ``(names, ...)``."""


def check_metrics(asked: Iterable[str], known: Iterable[str]) -> None:
    """Refuse metrics that a way of scoring does not have.

    Raises:
        ConfigError: it lacks one.
    """
    there = list(known)
    unknown = [metric for metric in asked if metric not in there]
    if unknown:
        raise ConfigError(f"unknown metrics: {', '.join(unknown)}; there are {', '.join(there)}")


def check_ids(captions: Iterable[str], references: Iterable[str]) -> None:
    """Refuse captions and references that name different pairs.

    Raises:
        DataError: ids differ, or there is no caption.
    """
    said, known = dict.fromkeys(captions), dict.fromkeys(references)
    if not said:
        raise DataError("there are no captions to score")
    for name, have, lack in (("reference", said, known), ("caption", known, said)):
        absent = [id for id in have if id not in lack]
        if absent:
            raise DataError(
                f"{len(absent)} of {len(have)} pairs have no {name}: {some(absent)}; "
                "captions and references must name the same pairs"
            )


def _by_id(items: Mapping[str, T] | Iterable[tuple[str, T]], what: str) -> dict[str, T]:
    if isinstance(items, Mapping):
        return dict(items)
    found: dict[str, T] = {}
    for id, item in items:
        if id in found:
            raise DataError(f"pair {id!r} has {what} twice; give each id once")
        found[id] = item
    return found


def as_text(id: str, text: object, what: str) -> str:
    """The text of a caption or reference.

    Raises:
        DataError: it is not text.
    """
    if not isinstance(text, str):
        raise DataError(f"pair {id!r}: a {what} is {text!r}, which is not text; leave the pair out or give it text")
    return text


def some(ids: Sequence[str]) -> str:
    """The first of many ids, for messages."""
    return ", ".join(map(repr, ids[:5])) + (", ..." if len(ids) > 5 else "")
