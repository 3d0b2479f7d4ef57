"""Two files of captions under one protocol, also where a judge left pairs of one of them without an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

from lightning_idc.metrics.bootstrap import compare
from lightning_idc.metrics.captions import Scores, ScoringResources
from lightning_idc.metrics.grouping import ReferenceRecord
from lightning_idc.metrics.protocols import Protocol, evaluate
from lightning_idc.utils.errors import DataError, IDCError


def compare_captions(
    protocol: Protocol,
    captions: Mapping[str, str],
    truths: Sequence[ReferenceRecord],
    scored: Scores,
    metrics: Sequence[str],
    resources: ScoringResources,
    samples: int,
) -> tuple[dict[str, Any], dict[str, str]]:
    """What scored captions have over those of another file, on the pairs that count for both.

    Args:
        protocol: that is in force.
        captions: of the other file, by pair.
        truths: references of the pairs.
        scored: headline of the captions that are scored.
        metrics: that are compared.
        resources: with the judge of the other file, where one decides; pairs of which its answer, or that about the
            scored captions, could not be read are left out.
        samples: corpora that are drawn.

    Returns:
        Differences by metric with the numbers of pairs, as a result holds them; and why there are none.
    """
    expected = {truth.id: truth.references for truth in next(iter(protocol.parts(truths).values()))}
    try:
        other = next(iter(evaluate(protocol, captions, truths, metrics, resources).values()))
        if resources.judge is not None:
            other, scored = _on_common_pairs(other, scored, expected)
        differences = compare(other, scored, samples)
    except IDCError as error:  # the scores at hand are not lost with it
        return {}, {"against": str(error)}
    found: dict[str, Any] = {"against": {name: difference.as_dict() for name, difference in differences.items()}}
    unread = {} if resources.judge is None else {"against_unread": len(expected) - other.pairs}
    return {**found, "against_pairs": other.pairs, **unread}, {}


def _on_common_pairs(first: Scores, second: Scores, references: Mapping[str, Sequence[str]]) -> tuple[Scores, Scores]:
    """Scores on the pairs whose answers were read for both, which alone compare."""
    both = set(first.ids) & set(second.ids)
    if len(both) < 2:
        raise DataError(
            f"the judge's answers were read for both captioners on {len(both)} of {len(references)} pairs, and a "
            "comparison needs at least two; ask another judge, or give its answers more tokens"
        )
    return _restricted(first, both, references), _restricted(second, both, references)


def _restricted(scores: Scores, pairs: AbstractSet[str], references: Mapping[str, Sequence[str]]) -> Scores:
    """Scores of some of the pairs, each of them a mean over pairs."""
    kept = [id in pairs for id in scores.ids]
    ids = [id for id in scores.ids if id in pairs]
    per_pair = {name: of_pairs[kept] for name, of_pairs in scores.per_pair.items()}
    values = {name: float(of_pairs.mean()) for name, of_pairs in per_pair.items()}
    return replace(scores, values=values, per_pair=per_pair, ids=ids, references=sum(len(references[id]) for id in ids))
