"""Baseline scores: captioners that do not see the change, which a captioner must beat before its score means anything.

The baselines are a constant caption, the captioner's own captions shuffled among pairs, and (from the evaluation
callback) its captions where the second image equals the first. For lists of differences they are a caption that claims
nothing, and shuffled captions. :func:`verdict` turns intervals over these baselines and over another captioner into a
word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from lightning_idc.metrics.bootstrap import Difference
from lightning_idc.metrics.captions import References, ScoringResources, score_captions
from lightning_idc.metrics.grouping import ReferenceRecord
from lightning_idc.metrics.protocols import Protocol, evaluate
from lightning_idc.utils.errors import DataError, IDCError

CONSTANT, SHUFFLED, IDENTICAL = "constant caption", "shuffled captions", "identical images"
"""Names of the baselines that do not see the change."""
BELOW_BASELINE = "below the baseline"
UNDECIDED = "not decided"
NO_DIFFERENCE = "there is no difference"
MAX_PAIRS, MAX_CANDIDATES = 500, 64


def constant_caption(references: Sequence[Sequence[str]], seed: int = 0) -> str:
    """The single caption with the highest CIDEr-D when it is predicted for every pair.

    Candidates are the most frequent captions and as many random others, scored on a sample of the pairs.

    Args:
        references: captions of each training pair.
        seed: random seed of the sample.

    Raises:
        DataError: no pair has a reference.

    Example:
        >>> constant_caption([["a cube moved"], ["a cube moved"], ["the sphere is gone"]])
        'a cube moved'
    """
    texts = [list(pair_references) for pair_references in references if len(pair_references)]  # one list per pair
    if not texts:
        raise DataError("no training references to choose a constant caption from; expected at least one")
    generator = np.random.default_rng(seed)
    indices = np.sort(generator.permutation(len(texts))[:MAX_PAIRS])
    counts: dict[str, int] = {}
    for pair_references in texts:
        for text in pair_references:
            counts[text] = counts.get(text, 0) + 1
    ranked = sorted(counts, key=lambda text: (-counts[text], text))
    frequent, rare = ranked[: MAX_CANDIDATES // 2], ranked[MAX_CANDIDATES // 2 :]
    sampled = generator.permutation(len(rare))[: MAX_CANDIDATES // 2]
    candidates = [*frequent, *(rare[index] for index in sampled)]
    sample = References({str(index): texts[index] for index in indices})
    scores = [_mean_score(dict.fromkeys(sample.ids, text), sample) for text in candidates]
    # argmax takes the first of equal scores, which is the most frequent caption
    return candidates[int(np.argmax(scores))]


def shuffled_captions(captions: Mapping[str, str], seed: int = 0) -> dict[str, str]:
    """Captions moved to other pairs, so that no pair keeps its caption. The order depends only on the seed.

    Args:
        captions: caption by pair id.
        seed: random seed of the order.

    Raises:
        DataError: fewer than two pairs.

    Example:
        >>> shuffled_captions({"a": "x", "b": "y"})
        {'a': 'y', 'b': 'x'}
    """
    if len(captions) < 2:
        raise DataError(f"there are captions of {len(captions)} pairs; expected at least two to shuffle")
    return {id: captions[source] for id, source in _shuffled_ids(list(captions), seed).items()}


def _shuffled_ids(ids: Sequence[str], seed: int = 0) -> dict[str, str]:
    """Another id for each id, without fixed points."""
    order = np.random.default_rng(seed).permutation(len(ids))
    source = dict(zip(order.tolist(), np.roll(order, 1).tolist(), strict=True))
    return {id: ids[source[index]] for index, id in enumerate(ids)}


def baseline_scores(
    protocol: Protocol, captions: Mapping[str, str], references: Sequence[ReferenceRecord], resources: ScoringResources
) -> tuple[dict[str, dict[str, dict[str, float]]], dict[str, str]]:
    """Scores of captioners that see neither image: one that claims nothing, and the captions of other pairs.

    With exact facts, also the best constant claim: one operator, in the median box of all changes.

    Args:
        protocol: scoring protocol.
        captions: caption by pair id.
        references: references of the pairs.
        resources: scoring resources, with the judge.

    Returns:
        Scores by baseline, part and metric; and for each baseline without scores the reason, such as unreadable
        answers of the judge.
    """
    baselines = {"claims nothing": (dict.fromkeys(captions, NO_DIFFERENCE), resources)}
    if len(captions) > 1:
        other = _shuffled_ids(list(captions))
        boxes = {id: resources.boxes[source] for id, source in other.items() if source in resources.boxes}
        moved = {id: captions[source] for id, source in other.items()}
        baselines["captions of other pairs"] = moved, replace(resources, boxes=boxes)
    if protocol.has_facts and resources.judge is None and any(record.change for record in references):
        baselines["constant claim"] = _constant_claim(protocol, list(captions), references, resources)
    scores, reasons = {}, {}
    for name, (baseline_captions, baseline_resources) in baselines.items():
        try:
            parts = evaluate(protocol, baseline_captions, references, None, baseline_resources)
        except IDCError as error:  # the scores of the captioner itself must not be lost
            reasons[f"baseline, {name}"] = str(error)
            continue
        scores[name] = {part: dict(part_scores.values) for part, part_scores in parts.items()}
    return scores, reasons


def _constant_claim(
    protocol: Protocol, ids: Sequence[str], references: Sequence[ReferenceRecord], resources: ScoringResources
) -> tuple[dict[str, str], ScoringResources]:
    """The reference with the highest score when it is predicted for every pair, one candidate per operator."""
    changed = [record for record in references if record.change is not None and record.references]
    boxes = [box for record in changed if record.change is not None for box in record.change.boxes[:1]]
    median = tuple(np.median(np.array(boxes), axis=0).tolist()) if boxes else None
    constant = replace(resources, boxes={} if median is None else {id: [median] for id in ids})
    candidates = {record.change.operator: record.references[0] for record in changed if record.change is not None}

    def headline(text: str) -> float:
        parts = evaluate(protocol, dict.fromkeys(ids, text), references, None, constant)
        return next(iter(next(iter(parts.values())).values.values()))

    return dict.fromkeys(ids, max(candidates.values(), key=headline)), constant


def verdict(difference: Difference | None, over_baselines: Iterable[Difference] = ()) -> str:
    """Conclusion from confidence intervals: ``higher``, ``lower``, ``not decided`` or ``below the baseline``.

    Args:
        difference: score minus that of another captioner; without another one (None) the result is "".
        over_baselines: score minus that of each baseline. Unless all of these intervals lie above 0, the verdict is
            ``below the baseline``, whatever the difference.

    Example:
        >>> ahead = Difference(10.0, 15.0, 5.0, 1.0, 9.0, 0.01, 8, 2)
        >>> behind = Difference(16.0, 15.0, -1.0, -4.0, 2.0, 0.5, 5, 5)
        >>> verdict(ahead), verdict(behind), verdict(ahead, [behind])
        ('higher', 'not decided', 'below the baseline')
    """
    if any(over.low <= 0 for over in over_baselines):
        return BELOW_BASELINE
    if difference is None:
        return ""
    if difference.low > 0:
        return "higher"
    return "lower" if difference.high < 0 else UNDECIDED


def _mean_score(captions: Mapping[str, str], references: References) -> float:
    return score_captions(captions, references, ("CIDEr-D",)).values["CIDEr-D"]
