"""What a score must beat before it says anything, and what an interval allows one to say.

Three captioners that do not see what changed: one that says the same of every pair, one whose captions are dealt to
other pairs, and the captioner itself where the picture after the change is the one before it. Of lists of differences
there are two: one that claims nothing, and captions that are dealt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from lightning_idc.metrics.bootstrap import Difference
from lightning_idc.metrics.captions import References, ScoringResources, score_captions
from lightning_idc.metrics.grouping import ReferenceRecord
from lightning_idc.metrics.protocols import Protocol, evaluate
from lightning_idc.utils.errors import DataError, IDCError

BELOW = "below the floor"
UNDECIDED = "not decided"
NOTHING = "there is no difference"
MOST_PAIRS, MOST_CANDIDATES = 500, 64


def constant_caption(references: Sequence[Sequence[str]], seed: int = 0) -> str:
    """The caption that scores highest when it is said of every pair.

    Candidates are the most frequent captions and as many others, scored by CIDEr-D on a sample of the pairs.

    Args:
        references: of each training pair.
        seed: of the sample.

    Raises:
        DataError: there are no references.

    Example:
        >>> constant_caption([["a cube moved"], ["a cube moved"], ["the sphere is gone"]])
        'a cube moved'
    """
    known = [list(of_pair) for of_pair in references if len(of_pair)]
    if not known:
        raise DataError("there are no training references to choose a constant caption from; give at least one")
    generator = np.random.default_rng(seed)
    places = np.sort(generator.permutation(len(known))[:MOST_PAIRS])
    counts: dict[str, int] = {}
    for of_pair in known:
        for text in of_pair:
            counts[text] = counts.get(text, 0) + 1
    ranked = sorted(counts, key=lambda text: (-counts[text], text))
    others = ranked[MOST_CANDIDATES // 2 :]
    drawn = generator.permutation(len(others))[: MOST_CANDIDATES // 2]
    candidates = [*ranked[: MOST_CANDIDATES // 2], *(others[place] for place in drawn)]
    expected = References({str(place): known[place] for place in places})
    scores = [_mean_score(dict.fromkeys(expected.ids, text), expected) for text in candidates]
    # of equal scores the one that is said most
    return candidates[int(np.argmax(scores))]


def dealt(captions: Mapping[str, str], seed: int = 0) -> dict[str, str]:
    """Every caption given to another pair; which one depends on the seed alone.

    Args:
        captions: by pair.
        seed: of the order in which they are handed on.

    Raises:
        DataError: there is only one pair.

    Example:
        >>> dealt({"a": "x", "b": "y"})
        {'a': 'y', 'b': 'x'}
    """
    if len(captions) < 2:
        raise DataError(f"captions of {len(captions)} pairs cannot be dealt to other pairs; give at least two")
    ids = list(captions)
    order = np.random.default_rng(seed).permutation(len(ids))
    to = dict(zip(order.tolist(), np.roll(order, 1).tolist(), strict=True))
    return {id: captions[ids[to[place]]] for place, id in enumerate(ids)}


def blind_scores(
    protocol: Protocol, captions: Mapping[str, str], truths: Sequence[ReferenceRecord], resources: ScoringResources
) -> tuple[dict[str, dict[str, dict[str, float]]], dict[str, str]]:
    """Scores of captioners that do not see what changed: one that claims nothing, and captions of other pairs.

    Args:
        protocol: that is in force.
        captions: by pair.
        truths: references of the pairs.
        resources: with the judge.

    Returns:
        Scores by floor and part, and why a floor has none, such as answers that cannot be read.
    """
    blind = {"claims nothing": dict.fromkeys(captions, NOTHING)}
    if len(captions) > 1:
        blind["captions of other pairs"] = dealt(captions)
    found, reasons = {}, {}
    for name, said in blind.items():
        try:
            parts = evaluate(protocol, said, truths, None, resources)
        except IDCError as error:  # the captioner's own scores are not lost with it
            reasons[f"floor, {name}"] = str(error)
            continue
        found[name] = {part: dict(scores.values) for part, scores in parts.items()}
    return found, reasons


def reading(difference: Difference | None, floors: Iterable[Difference] = ()) -> str:
    """What may be said of a difference: ``higher``, ``lower``, ``not decided`` or ``below the floor``.

    Args:
        difference: what one captioner has over another; None where there is no other, of which nothing is said.
        floors: what it has over captioners that do not see what changed; unless all of these lie above 0 with their
            intervals, nothing else is said.

    Example:
        >>> ahead = Difference(10.0, 15.0, 5.0, 1.0, 9.0, 0.01, 8, 2)
        >>> behind = Difference(16.0, 15.0, -1.0, -4.0, 2.0, 0.5, 5, 5)
        >>> reading(ahead), reading(behind), reading(ahead, [behind])
        ('higher', 'not decided', 'below the floor')
    """
    if any(floor.low <= 0 for floor in floors):
        return BELOW
    if difference is None:
        return ""
    if difference.low > 0:
        return "higher"
    return "lower" if difference.high < 0 else UNDECIDED


def _mean_score(captions: Mapping[str, str], expected: References) -> float:
    return score_captions(captions, expected, ("CIDEr-D",)).values["CIDEr-D"]
