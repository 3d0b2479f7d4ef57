"""Comparison of captioners on the same pairs, with baselines and paired intervals of successive differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from lightning_idc.metrics.baselines import shuffled_captions, verdict
from lightning_idc.metrics.bootstrap import Difference, compare
from lightning_idc.metrics.captions import References, Scores, score_captions
from lightning_idc.report.table import Table

METRIC = "CIDEr-D"
CONSTANT, DEALT, UNCHANGED = "constant", "dealt", "after := before"
FLOORS = (CONSTANT, DEALT, UNCHANGED)
Facts = Mapping[str, Mapping[str, bool | None]]


@dataclass(frozen=True)
class Captioned:
    """Captions of one captioner on a split.

    Args:
        captions: captions by pair id.
        unchanged: captions by pair id with the first image in place of the second; empty if not computed.
        facts: by pair id, whether each fact of the caption is right; None if a fact does not apply.
    """

    captions: Mapping[str, str]
    unchanged: Mapping[str, str] = field(default_factory=dict)
    facts: Facts = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """Results of one captioner in a comparison.

    Args:
        name: name of the row.
        score: CIDEr-D.
        words: mean number of words per caption.
        distinct: number of different captions.
        facts: percentage of captions with a fact right, among the pairs to which it applies.
        floors: CIDEr-D of blind baselines, by name.
        over_floors: difference to each baseline.
        before: name of the previous row; None for the first.
        over_before: difference to the previous row, by CIDEr-D and each fact.
        reading: verdict, see ``metrics.baselines.verdict``.
        scores: scores of the captions, pair by pair.
    """

    name: str
    score: float
    words: float
    distinct: int
    facts: dict[str, float]
    floors: dict[str, float]
    over_floors: dict[str, Difference]
    before: str | None
    over_before: dict[str, Difference]
    reading: str
    scores: Scores

    def as_dict(self) -> dict[str, Any]:
        """Plain values, without the scores of each pair."""
        return {name: value for name, value in asdict(self).items() if name != "scores"}


def rows_of(
    captioned: Mapping[str, Captioned], references: Mapping[str, Sequence[str]], constant: str | None = None
) -> list[Row]:
    """Compare captioners, each with the previous one.

    Args:
        captioned: captions by name of the row, in order.
        references: references by pair id; pairs without references are ignored.
        constant: constant caption from training references, see ``metrics.baselines.constant_caption``.

    Raises:
        DataError: a captioner lacks captions of some pairs.
    """
    expected = References({id: texts for id, texts in references.items() if len(texts)})
    rows: list[Row] = []
    before: tuple[str, Scores, Captioned] | None = None
    for name, captioner in captioned.items():
        captions = {id: text for id, text in captioner.captions.items() if references.get(id)}
        scores = _scored(captions, expected)
        baselines = {DEALT: shuffled_captions(captions)}
        if constant is not None:
            baselines[CONSTANT] = dict.fromkeys(captions, constant)
        if captioner.unchanged:
            baselines[UNCHANGED] = {id: captioner.unchanged[id] for id in captions}
        floors = {floor: _scored(baselines[floor], expected) for floor in FLOORS if floor in baselines}
        over = {floor: compare(of_floor, scores)[METRIC] for floor, of_floor in floors.items()}
        gains = {} if before is None else compare(before[1], scores) | facts_over(before[2].facts, captioner.facts)
        rows.append(
            Row(
                name,
                scores.values[METRIC],
                float(np.mean([len(caption.split()) for caption in captions.values()])),
                len(set(captions.values())),
                {fact: 100 * float(values.mean()) for fact, (_, values) in _judged(captioner.facts).items()},
                {floor: of_floor.values[METRIC] for floor, of_floor in floors.items()},
                over,
                None if before is None else before[0],
                gains,
                verdict(gains.get(METRIC), over.values()),
                scores,
            )
        )
        before = name, scores, captioner
    return rows


def facts_over(first: Facts, second: Facts) -> dict[str, Difference]:
    """Difference of the second captioner to the first for each fact that applies to the same pairs.

    Args:
        first: facts by pair id.
        second: facts by pair id.
    """
    one, other = _judged(first), _judged(second)
    differences: dict[str, Difference] = {}
    for fact in one:
        if fact in other and one[fact][0] == other[fact][0] and len(one[fact][0]) > 1:
            first_scores, second_scores = (
                Scores({fact: 100 * float(values.mean())}, {fact: 100 * values}, ids, 0)
                for ids, values in (one[fact], other[fact])
            )
            differences |= compare(first_scores, second_scores)
    return differences


def differences_table(rows: Sequence[Row]) -> str:
    """Table of CIDEr-D, baselines, differences to the previous row and verdicts."""
    floors = [floor for floor in FLOORS if any(floor in row.floors for row in rows)]
    cells = []
    for row in rows:
        gain = row.over_before.get(METRIC)
        cells.append(
            [
                row.name,
                f"{row.score:.1f}",
                *(f"{row.floors[floor]:.1f}" if floor in row.floors else "-" for floor in floors),
                "" if gain is None else interval(gain),
                row.reading,
                f"{row.words:.1f}",
                str(row.distinct),
            ]
        )
    columns = ["", METRIC, *floors, "over the row before [95 %]", "reading", "words", "distinct"]
    return Table(columns, cells).markdown()


def facts_table(rows: Sequence[Row]) -> str:
    """Table of the percentage of captions with each fact right, and differences to the previous row.

    There is no interval if a fact applies to other pairs than in the previous row, such as a relation that only one
    captioner mentions.
    """
    facts = list(dict.fromkeys(fact for row in rows for fact in row.facts))
    cells = []
    for row in rows:
        gains = {fact: f" {interval(row.over_before[fact])}" for fact in facts if fact in row.over_before}
        texts = [f"{row.facts[fact]:.1f}{gains.get(fact, '')}" if fact in row.facts else "-" for fact in facts]
        cells.append([row.name, *texts])
    return Table(["facts right, %", *facts], cells).markdown()


def interval(difference: Difference) -> str:
    """``+3.0 [1.0, 5.0]``."""
    return f"{difference.difference:+.1f} [{difference.low:.1f}, {difference.high:.1f}]"


def _scored(captions: Mapping[str, str], expected: References) -> Scores:
    return score_captions(captions, expected, (METRIC,))


def _judged(facts: Facts) -> dict[str, tuple[list[str], np.ndarray[Any, np.dtype[np.float64]]]]:
    """By fact: ids of the pairs to which it applies, and 1 for right or 0 for wrong."""
    by_fact: dict[str, tuple[list[str], Any]] = {}
    for name in dict.fromkeys(name for of_pair in facts.values() for name in of_pair):
        judged = {id: of_pair[name] for id, of_pair in sorted(facts.items()) if of_pair.get(name) is not None}
        if judged:
            by_fact[name] = list(judged), np.array([float(bool(value)) for value in judged.values()])
    return by_fact
