"""Comparison of two files of captions under one protocol, on the pairs scored for both."""

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
    references: Sequence[ReferenceRecord],
    scores: Scores,
    metrics: Sequence[str],
    resources: ScoringResources,
    samples: int,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Differences of scored captions and those of another file, on the pairs scored for both.

    Args:
        protocol: scoring protocol.
        captions: captions of the other file by pair id.
        references: references of the pairs.
        scores: headline scores of the first file.
        metrics: names of metrics.
        resources: scoring resources, with the judge of the other file where the protocol has one; pairs with an
            unreadable answer for either file are left out.
        samples: number of resampled corpora.

    Returns:
        Differences by metric with the numbers of pairs, as in a result; and the reason where there are none.
    """
    expected = {record.id: record.references for record in next(iter(protocol.parts(references).values()))}
    try:
        other = next(iter(evaluate(protocol, captions, references, metrics, resources).values()))
        if resources.judge is not None:
            other, scores = _on_common_pairs(other, scores, expected)
        differences = compare(other, scores, samples)
    except IDCError as error:  # the scores of the first file must not be lost
        return {}, {"against": str(error)}
    result: dict[str, Any] = {"against": {name: difference.as_dict() for name, difference in differences.items()}}
    unread = {} if resources.judge is None else {"against_unread": len(expected) - other.pairs}
    return {**result, "against_pairs": other.pairs, **unread}, {}


def _on_common_pairs(first: Scores, second: Scores, references: Mapping[str, Sequence[str]]) -> tuple[Scores, Scores]:
    """Scores on the pairs whose answers were readable for both."""
    common = set(first.ids) & set(second.ids)
    if len(common) < 2:
        raise DataError(
            f"the judge's answers were read for both captioners on {len(common)} of {len(references)} pairs, and a "
            "comparison needs at least two; use another judge or longer answers"
        )
    return _restricted(first, common, references), _restricted(second, common, references)


def _restricted(scores: Scores, pairs: AbstractSet[str], references: Mapping[str, Sequence[str]]) -> Scores:
    """Scores of a subset of pairs, for metrics that are means over pairs."""
    mask = [id in pairs for id in scores.ids]
    ids = [id for id in scores.ids if id in pairs]
    per_pair = {name: pair_scores[mask] for name, pair_scores in scores.per_pair.items()}
    values = {name: float(pair_scores.mean()) for name, pair_scores in per_pair.items()}
    return replace(scores, values=values, per_pair=per_pair, ids=ids, references=sum(len(references[id]) for id in ids))
