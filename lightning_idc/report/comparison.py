"""compare_captioners: captioners on the same pairs, with baselines and paired intervals of successive differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from lightning_idc.metrics.baselines import CONSTANT, IDENTICAL, SHUFFLED, shuffled_captions, verdict
from lightning_idc.metrics.bootstrap import Difference, compare
from lightning_idc.metrics.captions import References, Scores, score_captions
from lightning_idc.report.table import Table

METRIC = "CIDEr-D"
BASELINES = (CONSTANT, SHUFFLED, IDENTICAL)
Facts = Mapping[str, Mapping[str, bool | None]]


@dataclass(frozen=True)
class Captioned:
    """Captions of one captioner on a split.

    Args:
        captions: captions by pair id.
        identical: captions by pair id with the first image in place of the second; empty if not computed.
        facts: by pair id, whether each fact of the caption is right; None if a fact does not apply.
        identical_facts: the same for the captions in ``identical``.
    """

    captions: Mapping[str, str]
    identical: Mapping[str, str] = field(default_factory=dict)
    facts: Facts = field(default_factory=dict)
    identical_facts: Facts = field(default_factory=dict)


@dataclass(frozen=True)
class ComparedCaptioner:
    """Results of one captioner in a comparison.

    Args:
        name: name of the row.
        score: CIDEr-D.
        words: mean number of words per caption.
        distinct: number of distinct captions.
        facts: percentage of captions with a fact right, among the pairs to which it applies.
        identical_facts: the same for captions of identical images.
        facts_over_identical: difference of ``facts`` to ``identical_facts``.
        baselines: CIDEr-D of baselines that do not see the change, by name.
        over_baselines: difference to each baseline.
        previous: name of the previous row; None for the first.
        over_previous: difference to the previous row, by CIDEr-D and each fact.
        verdict: conclusion from the intervals, see ``metrics.baselines.verdict``.
        scores: scores of the captions, pair by pair.
    """

    name: str
    score: float
    words: float
    distinct: int
    facts: dict[str, float]
    identical_facts: dict[str, float]
    facts_over_identical: dict[str, Difference]
    baselines: dict[str, float]
    over_baselines: dict[str, Difference]
    previous: str | None
    over_previous: dict[str, Difference]
    verdict: str
    scores: Scores

    def as_dict(self) -> dict[str, Any]:
        """Plain values, without the scores of each pair."""
        return {name: value for name, value in asdict(self).items() if name != "scores"}


def compare_captioners(
    captioned: Mapping[str, Captioned], references: Mapping[str, Sequence[str]], constant: str | None = None
) -> list[ComparedCaptioner]:
    """Compare captioners, each with the previous one.

    Args:
        captioned: captions by name of the row, in order.
        references: references by pair id; pairs without references are ignored.
        constant: caption selected on training references, see ``metrics.baselines.constant_caption``.

    Raises:
        DataError: a captioner lacks captions of some pairs.
    """
    expected = References({id: texts for id, texts in references.items() if len(texts)})
    rows: list[ComparedCaptioner] = []
    previous: tuple[str, Scores, Captioned] | None = None
    for name, captioner in captioned.items():
        captions = {id: text for id, text in captioner.captions.items() if references.get(id)}
        scores = _scored(captions, expected)
        baselines = {SHUFFLED: shuffled_captions(captions)}
        if constant is not None:
            baselines[CONSTANT] = dict.fromkeys(captions, constant)
        if captioner.identical:
            baselines[IDENTICAL] = {id: captioner.identical[id] for id in captions}
        baseline_scores = {key: _scored(baselines[key], expected) for key in BASELINES if key in baselines}
        over_baselines = {key: compare(baseline, scores)[METRIC] for key, baseline in baseline_scores.items()}
        over_previous: dict[str, Difference] = {}
        if previous is not None:
            over_previous = compare(previous[1], scores) | facts_over(previous[2].facts, captioner.facts)
        rows.append(
            ComparedCaptioner(
                name=name,
                score=scores.values[METRIC],
                words=float(np.mean([len(caption.split()) for caption in captions.values()])),
                distinct=len(set(captions.values())),
                facts=_percentages(captioner.facts),
                identical_facts=_percentages(captioner.identical_facts),
                facts_over_identical=facts_over(captioner.identical_facts, captioner.facts),
                baselines={key: baseline.values[METRIC] for key, baseline in baseline_scores.items()},
                over_baselines=over_baselines,
                previous=None if previous is None else previous[0],
                over_previous=over_previous,
                verdict=verdict(over_previous.get(METRIC), over_baselines.values()),
                scores=scores,
            )
        )
        previous = name, scores, captioner
    return rows


def facts_over(first: Facts, second: Facts) -> dict[str, Difference]:
    """Difference of the second captioner to the first for each fact that applies to the same pairs.

    Args:
        first: facts by pair id.
        second: facts by pair id.
    """
    first_judged, second_judged = _judged(first), _judged(second)
    differences: dict[str, Difference] = {}
    for fact, (first_ids, _) in first_judged.items():
        if fact in second_judged and first_ids == second_judged[fact][0] and len(first_ids) > 1:
            first_scores, second_scores = (
                Scores({fact: 100 * float(values.mean())}, {fact: 100 * values}, ids, references=0)
                for ids, values in (first_judged[fact], second_judged[fact])
            )
            differences |= compare(first_scores, second_scores)
    return differences


def differences_table(rows: Sequence[ComparedCaptioner]) -> str:
    """Table of CIDEr-D, baselines, differences to the previous row and verdicts."""
    baselines = [name for name in BASELINES if any(name in row.baselines for row in rows)]
    cells = []
    for row in rows:
        gain = row.over_previous.get(METRIC)
        cells.append(
            [
                row.name,
                f"{row.score:.1f}",
                *(f"{row.baselines[name]:.1f}" if name in row.baselines else "-" for name in baselines),
                "" if gain is None else interval(gain),
                row.verdict,
                f"{row.words:.1f}",
                str(row.distinct),
            ]
        )
    columns = ["", METRIC, *baselines, "over previous row [95 %]", "verdict", "words", "distinct"]
    return Table(columns, cells).markdown()


def facts_table(rows: Sequence[ComparedCaptioner]) -> str:
    """Table of the percentage of captions with each fact right, and differences to the previous row.

    A second line of a captioner has the facts of its captions of identical images, which cannot depend on the change.
    There is no interval if a fact does not apply to the same pairs as in the previous row, such as a relation that only
    one captioner mentions.
    """
    facts = list(dict.fromkeys(fact for row in rows for fact in row.facts))
    cells = []
    for row in rows:
        gains = {fact: f" {interval(row.over_previous[fact])}" for fact in facts if fact in row.over_previous}
        texts = [f"{row.facts[fact]:.1f}{gains.get(fact, '')}" if fact in row.facts else "-" for fact in facts]
        cells.append([row.name, *texts])
        if row.identical_facts:
            values = [f"{row.identical_facts[fact]:.1f}" if fact in row.identical_facts else "-" for fact in facts]
            cells.append([f"{row.name}, {IDENTICAL}", *values])
    return Table(["facts right, %", *facts], cells).markdown()


def interval(difference: Difference) -> str:
    """A difference with its interval, such as ``+3.0 [1.0, 5.0]``."""
    return f"{difference.difference:+.1f} [{difference.low:.1f}, {difference.high:.1f}]"


def _scored(captions: Mapping[str, str], expected: References) -> Scores:
    return score_captions(captions, expected, (METRIC,))


def _percentages(facts: Facts) -> dict[str, float]:
    return {fact: 100 * float(values.mean()) for fact, (_, values) in _judged(facts).items()}


def _judged(facts: Facts) -> dict[str, tuple[list[str], np.ndarray[Any, np.dtype[np.float64]]]]:
    """By fact: ids of the pairs to which it applies, and 1 for right or 0 for wrong."""
    by_fact: dict[str, tuple[list[str], Any]] = {}
    for name in dict.fromkeys(name for pair_facts in facts.values() for name in pair_facts):
        judged = {id: values[name] for id, values in sorted(facts.items()) if values.get(name) is not None}
        if judged:
            by_fact[name] = list(judged), np.array([float(bool(value)) for value in judged.values()])
    return by_fact
