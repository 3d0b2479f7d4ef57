"""score_captions: all metrics of a corpus of captions, computed in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from lightning_idc.metrics import bleu, meteor
from lightning_idc.metrics.change_facts import Box, ChangeFacts
from lightning_idc.metrics.cider import cider, cider_d
from lightning_idc.metrics.corpus import Corpus, Floats, ReferenceCounts
from lightning_idc.metrics.meteor import Backend, NotComputed, backend_named, meteor_scores
from lightning_idc.metrics.rouge import rouge_l
from lightning_idc.metrics.spice import spice_scores
from lightning_idc.metrics.tokenizer import ptb_tokenize
from lightning_idc.utils.errors import ConfigError, DataError

T = TypeVar("T")
FAST_METRICS = ("BLEU", "ROUGE-L", "CIDEr-D")
"""Metrics that need no tables."""
STANDARD_METRICS = ("BLEU", "METEOR", "ROUGE-L", "CIDEr-D")
"""Metrics that papers usually report."""


@dataclass  # not frozen: torchmetrics copies what a Metric computes field by field
class Scores:
    """Scores on the scale of papers: pycocoevalcap's values times 100, so that the maximum of CIDEr-D is 1000.

    Args:
        values: corpus score by metric.
        per_pair: score of each pair by metric, in the order of ``ids``.
        ids: ids of the scored pairs, or of their records where a pair has several.
        references: number of references.
        missing: requested metrics that could not be computed, with the reason.
        statistics: counts of each pair for metrics whose corpus score is not a mean over pairs, ``(S, P)``.
        backends: implementation of a metric, where there is a choice.
        records_of: pair id of each record id, where a pair has several records; else empty.
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
        """Number of scored records, which is that of the pairs where each has one."""
        return len(self.ids)

    def as_dict(self) -> dict[str, float]:
        """Corpus score by metric."""
        return dict(self.values)

    def of_pair(self, id: str) -> dict[str, float]:
        """Scores of one pair by metric."""
        index = self.ids.index(id)
        return {metric: float(values[index]) for metric, values in self.per_pair.items()}


class References:
    """References of a corpus, tokenised and counted once; scoring against them again is several times cheaper.

    Args:
        references: texts by pair id, or (id, texts).
        tokenize: tokenizer of references and candidates.

    Raises:
        DataError: an id appears twice, a pair has no reference, or a reference is not text.
    """

    def __init__(
        self,
        references: Mapping[str, Sequence[str]] | Iterable[tuple[str, Sequence[str]]],
        tokenize: Callable[[str], list[str]] = ptb_tokenize,
    ) -> None:
        texts = _by_id(references, "references")
        empty = [
            id for id, pair_references in texts.items() if isinstance(pair_references, str) or not len(pair_references)
        ]
        if empty:
            raise DataError(
                f"{len(empty)} of {len(texts)} pairs have no list of references: {first_ids(empty)}; "
                "give each pair a list with at least one text"
            )
        self.ids = list(texts)
        self.tokenize = tokenize
        self.counts = ReferenceCounts(
            [
                [tokenize(as_text(id, text, "reference")) for text in pair_references]
                for id, pair_references in texts.items()
            ]
        )


@dataclass(frozen=True)
class ScoringResources:
    """Additional inputs of some metrics.

    Args:
        frequencies: references of another corpus that define the document frequencies of CIDEr and CIDEr-D; the scored
            references when None.
        corenlp: folder with Stanford CoreNLP's jars, for SPICE.
        judge: function that decides which claim states which difference (see ``difference_list``), or whether the
            claims are correct (see ``diffspot``).
        facts: exact facts of the change by pair id, for the protocol diffspot; set by ``evaluate``.
        boxes: boxes of the claims of each caption by pair id, for the protocol diffspot.
        meteor_backend: ``python`` or ``java``; see :func:`~lightning_idc.metrics.meteor.backend_named`.
    """

    frequencies: References | None = None
    corenlp: Path | None = None
    judge: Callable[..., Any] | None = None
    meteor_backend: Backend | None = None
    facts: Mapping[str, ChangeFacts] = field(default_factory=dict)
    boxes: Mapping[str, Sequence[Box]] = field(default_factory=dict)

    @property
    def counts(self) -> ReferenceCounts | None:
        """N-grams of the other corpus."""
        return None if self.frequencies is None else self.frequencies.counts


def score_captions(
    candidates: Mapping[str, str] | Iterable[tuple[str, str]],
    references: Mapping[str, Sequence[str]] | References,
    metrics: Sequence[str] = FAST_METRICS,
    resources: ScoringResources | None = None,
) -> Scores:
    """Score one caption per pair against all references of the pair.

    BLEU, ROUGE-L and CIDEr-D equal pycocoevalcap's given the same tokens. Pairs come in the order of the references.

    Args:
        candidates: caption by pair id, or (id, caption); captions may be empty.
        references: references by pair id, with the same ids.
        metrics: names among BLEU, METEOR, ROUGE-L, CIDEr-D, CIDEr and SPICE; SPICE needs Java.
        resources: additional inputs of some metrics.

    Raises:
        ConfigError: a metric is unknown.
        DataError: ids differ or repeat, a pair has no reference, or there is no caption.

    Example:
        >>> scores = score_captions({"1": "The cube moved."}, {"1": ["the red cube moved", "the cube moved"]})
        >>> round(scores.values["ROUGE-L"], 1), scores.pairs, scores.references
        (100.0, 1, 2)
    """
    check_metrics(metrics, _SCORERS)
    texts = _by_id(candidates, "captions")
    check_ids(texts, references.ids if isinstance(references, References) else list(references))
    prepared = references if isinstance(references, References) else References(references)
    corpus = Corpus([prepared.tokenize(as_text(id, texts[id], "caption")) for id in prepared.ids], prepared.counts)
    scores = Scores({}, {}, list(prepared.ids), int(prepared.counts.per_pair.sum()))
    for metric in metrics:
        outcome = _SCORERS[metric](corpus, resources or ScoringResources())
        if isinstance(outcome, NotComputed):
            scores.missing[metric] = str(outcome)
            continue
        corpus_scores, pair_scores, statistics = outcome
        if metric == "METEOR":
            scores.backends[metric] = backend_named((resources or ScoringResources()).meteor_backend)
        scores.values |= {name: 100 * value for name, value in corpus_scores.items()}
        scores.per_pair |= {name: 100 * values for name, values in pair_scores.items()}
        if statistics is not None:
            scores.statistics[metric] = statistics
    return scores


MetricValues = tuple[dict[str, float], dict[str, Floats], Floats | None]


def _bleu(corpus: Corpus, resources: ScoringResources) -> MetricValues:
    statistics = bleu.bleu_statistics(corpus)
    corpus_scores, pair_scores = bleu.from_statistics(statistics.sum(1)), bleu.from_statistics(statistics)
    names = [f"BLEU-{n + 1}" for n in range(4)]
    return (
        dict(zip(names, map(float, corpus_scores), strict=True)),
        dict(zip(names, pair_scores, strict=True)),
        statistics,
    )


def _meteor(corpus: Corpus, resources: ScoringResources) -> MetricValues | NotComputed:
    outcome = meteor_scores(corpus.candidates, corpus.references.tokens, resources.meteor_backend)
    if isinstance(outcome, NotComputed):
        return outcome
    return {"METEOR": outcome.corpus}, {"METEOR": outcome.per_pair}, outcome.statistics


def _spice(corpus: Corpus, resources: ScoringResources) -> MetricValues | NotComputed:
    outcome = spice_scores(corpus.candidates, corpus.references.tokens, resources.corenlp)
    return outcome if isinstance(outcome, NotComputed) else _mean("SPICE", *outcome)


def _mean(name: str, corpus_score: float, pair_scores: Floats) -> MetricValues:
    return {name: corpus_score}, {name: pair_scores}, None


_SCORERS: dict[str, Callable[[Corpus, ScoringResources], MetricValues | NotComputed]] = {
    "BLEU": _bleu,
    "METEOR": _meteor,
    "ROUGE-L": lambda corpus, _: _mean("ROUGE-L", *rouge_l(corpus)),
    "CIDEr-D": lambda corpus, resources: _mean("CIDEr-D", *cider_d(corpus, resources.counts)),
    "CIDEr": lambda corpus, resources: _mean("CIDEr", *cider(corpus, resources.counts)),
    "SPICE": _spice,
}
METRICS = tuple(_SCORERS)
"""Names of all metrics."""
FROM_STATISTICS: dict[str, tuple[list[str], Callable[[Floats], Floats]]] = {
    "BLEU": ([f"BLEU-{n + 1}" for n in range(4)], bleu.from_statistics),
    "METEOR": (["METEOR"], lambda summed: meteor.from_statistics(summed)[None]),
}
"""Scores by summed statistics: their names, and a function from ``(S, ...)`` to ``(names, ...)``."""


def check_metrics(requested: Iterable[str], available: Iterable[str]) -> None:
    """Check the names of metrics.

    Raises:
        ConfigError: a name is unknown.
    """
    names = list(available)
    unknown = [metric for metric in requested if metric not in names]
    if unknown:
        raise ConfigError(f"unknown metrics: {', '.join(unknown)}; expected {', '.join(names)}")


def check_ids(captions: Iterable[str], references: Iterable[str]) -> None:
    """Check that captions and references belong to the same pairs.

    Raises:
        DataError: ids differ, or there is no caption.
    """
    caption_ids, reference_ids = dict.fromkeys(captions), dict.fromkeys(references)
    if not caption_ids:
        raise DataError("there are no captions to score")
    for name, ids, other_ids in (("reference", caption_ids, reference_ids), ("caption", reference_ids, caption_ids)):
        absent = [id for id in ids if id not in other_ids]
        if absent:
            raise DataError(
                f"{len(absent)} of {len(ids)} pairs have no {name}: {first_ids(absent)}; "
                "captions and references must name the same pairs"
            )


def _by_id(items: Mapping[str, T] | Iterable[tuple[str, T]], kind: str) -> dict[str, T]:
    if isinstance(items, Mapping):
        return dict(items)
    values: dict[str, T] = {}
    for id, item in items:
        if id in values:
            raise DataError(f"pair {id!r} has {kind} twice; expected each id once")
        values[id] = item
    return values


def as_text(id: str, text: object, kind: str) -> str:
    """The text of a caption or reference.

    Raises:
        DataError: the value is not text.
    """
    if not isinstance(text, str):
        raise DataError(f"pair {id!r}: a {kind} is {text!r}; expected text, or leave the pair out")
    return text


def first_ids(ids: Sequence[str]) -> str:
    """The first five ids, for messages."""
    return ", ".join(map(repr, ids[:5])) + (", ..." if len(ids) > 5 else "")
