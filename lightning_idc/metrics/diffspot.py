"""The protocol diffspot: recall of changes by operator and tier, specificity, and overall, from exact facts.

As DiffSpot's leaderboard counts: a changed pair is a hit if the caption names the change and where it is, an unchanged
pair if the caption names no change; ``recall`` is the fraction of hits among changed pairs, ``specificity`` that among
unchanged ones, and ``overall``, the official score, that among all pairs. Claims beyond the right one do not count
against a caption.

DiffSpot asks a language model whether a caption is right. Pairs of a generator have exact facts instead: a claim is a
hit if its operator is one that describes the change as it is seen (:attr:`ChangeFacts.visible_operators`) and the
centre of its box is in the element, before or after the change. Two stricter forms stand next to it: ``strict``, the
operator of the generator itself, and ``IoU``, which also needs a box that overlaps the element by more than one half.
A claim without a box is located by the text that it quotes. With ``ScoringResources.judge`` the judged form is used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from lightning_idc.metrics.captions import Scores, ScoringResources, check_ids, check_metrics
from lightning_idc.metrics.change_facts import Box, ChangeFacts
from lightning_idc.metrics.judge import PromptedModel, fill
from lightning_idc.metrics.no_change import list_differences
from lightning_idc.metrics.page_claims import claimed_operator, quoted_texts
from lightning_idc.utils.boxes import box_iou
from lightning_idc.utils.errors import ConfigError, DataError

FORMS = ("", " (strict)", " (strict, IoU)")
RECALL = tuple(f"recall{form}" for form in FORMS)
OVERALL = tuple(f"overall{form}" for form in FORMS)
SPECIFICITY = ("specificity",)
METRICS = (*OVERALL, *RECALL, *SPECIFICITY)
MARGIN = 8
"""Pixels around an element in which the centre of a box still is in it."""
MIN_IOU = 0.5
VerdictJudge = Callable[[Sequence[tuple[Sequence[str], Sequence[str]]]], list[bool | None]]
"""Maps differences and claims of several pairs to whether the claims are correct; None for an unreadable answer."""

PROMPT = """Two screenshots of a web page differ in one element. The recorded change:
{differences}

What somebody says about the difference:
{claims}

Decide whether the statement is right as the page is seen. Answer "correct" if it names this element, by its text, its \
kind or its position, and what happened to it; a visible consequence of the change counts, too. Answer "partial" if \
only the element or only the kind of change is right. Answer "missed" otherwise. Further statements about other \
elements do not matter. Answer with one of these three words and nothing else."""
PROMPT_VERSION = "diffspot-verdict-1"


def by_diffspot(
    captions: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    metrics: Sequence[str],
    resources: ScoringResources,
) -> Scores:
    """Score one part of the protocol: changed pairs, unchanged pairs, or both.

    Args:
        captions: caption by pair id; each sentence or line is a claim, unless it says that nothing changed.
        references: descriptions of the change by pair id; an empty list where nothing changed.
        metrics: names of :data:`METRICS`.
        resources: scoring resources with the facts of changed pairs, and boxes of captions or a judge.

    Raises:
        ConfigError: a metric is unknown, or a changed pair has no facts and there is no judge.
        DataError: ids differ, or no answer of the judge could be read.
    """
    check_metrics(metrics, METRICS)
    check_ids(captions, references)
    claims = {id: list_differences([captions[id]]) for id in references}
    changed = [id for id in references if references[id]]
    hits: dict[str, tuple[bool, ...] | None]
    forms: tuple[str, ...] = FORMS
    if resources.judge is None:
        hits = {id: _hits(id, claims[id], resources) for id in changed}
    else:
        hits, forms = _judged(changed, claims, references, resources.judge), FORMS[:1]
    ids = [id for id in references if hits.get(id, ()) is not None]
    if not ids:
        raise DataError("no answer of the judge could be read; use another judge")
    name = "specificity" if not changed else "recall" if len(changed) == len(references) else "overall"
    per_pair = {}
    for index, form in enumerate(forms if changed else FORMS[:1]):
        if f"{name}{form}" in metrics:
            outcomes = [bool(hits[id] and hits[id][index]) if references[id] else not claims[id] for id in ids]  # type: ignore[index]
            per_pair[f"{name}{form}"] = 100 * np.array(outcomes, dtype=np.float64)
    num_unread = len(references) - len(ids)
    missing = {"unread": f"{num_unread} of {len(changed)} answers of the judge could not be read"} if num_unread else {}
    values = {metric: float(scores.mean()) for metric, scores in per_pair.items()}
    return Scores(values, per_pair, ids, sum(len(references[id]) for id in ids), missing)


def _hits(id: str, claims: Sequence[str], resources: ScoringResources) -> tuple[bool, ...]:
    """Whether any claim is right: as seen, strictly, and strictly with an overlapping box."""
    facts = resources.facts.get(id)
    if facts is None:
        raise ConfigError(
            f"pair {id!r} has no facts of its change; expected references with a field change, or --judge for a judge"
        )
    boxes = resources.boxes.get(id, ())
    outcomes = [_claim_hits(claim, box, facts) for claim, box in zip(claims, _boxes_of(claims, boxes), strict=True)]
    return tuple(any(outcome[form] for outcome in outcomes) for form in range(len(FORMS)))


def _boxes_of(claims: Sequence[str], boxes: Sequence[Box]) -> Sequence[Box | None]:
    """One box for each claim: its own where the numbers are equal, else the first, which is the most important one."""
    return list(boxes) if len(boxes) == len(claims) else [boxes[0] if boxes else None] * len(claims)


def _claim_hits(claim: str, box: Box | None, facts: ChangeFacts) -> tuple[bool, bool, bool]:
    operator = claimed_operator(claim)
    is_there = _is_centred(box, facts.boxes) if box is not None else _names_text(claim, facts.text)
    is_exact = operator == facts.operator and is_there
    overlaps = box is not None and any(box_iou(box, other) > MIN_IOU for other in facts.boxes)
    return operator in facts.visible_operators and is_there, is_exact, is_exact and overlaps


def _is_centred(box: Box, elements: Sequence[Box]) -> bool:
    x, y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    return any(
        left - MARGIN <= x <= right + MARGIN and top - MARGIN <= y <= bottom + MARGIN
        for left, top, right, bottom in elements
    )


def _names_text(claim: str, text: str) -> bool:
    """Whether a claim quotes the text of the element, or the beginning of it."""
    words = _plain(text)
    return bool(words) and any(quoted and words.startswith(quoted) for quoted in map(_plain, quoted_texts(claim)))


def _plain(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))


def _judged(
    ids: Sequence[str],
    claims: Mapping[str, Sequence[str]],
    references: Mapping[str, Sequence[str]],
    judge: VerdictJudge,
) -> dict[str, tuple[bool, ...] | None]:
    """Verdicts of a judge; a caption without a claim misses the change, and an unreadable answer is None."""
    with_claims = [id for id in ids if claims[id]]
    verdicts = judge([(references[id], claims[id]) for id in with_claims])
    hits: dict[str, tuple[bool, ...] | None] = dict.fromkeys(ids, (False,))
    for id, verdict in zip(with_claims, verdicts, strict=True):
        hits[id] = None if verdict is None else (verdict,)
    return hits


class PromptedVerdict(PromptedModel):
    """A language model as :data:`VerdictJudge`, as DiffSpot's leaderboard uses one; the prompt is ours."""

    def __call__(self, pairs: Sequence[tuple[Sequence[str], Sequence[str]]]) -> list[bool | None]:
        return self.ask([prompt_of(*pair) for pair in pairs], lambda index, answer: read_verdict(answer))


def prompt_of(differences: Sequence[str], claims: Sequence[str]) -> str:
    """Prompt of the judge for one pair."""
    return fill(PROMPT, differences="\n".join(differences), claims="\n".join(claims))


def read_verdict(answer: str) -> bool | None:
    """Whether an answer is "correct"; None unless it contains exactly one of the three verdicts.

    Example:
        >>> read_verdict("Verdict: correct."), read_verdict("partial"), read_verdict("correct or missed")
        (True, False, None)
    """
    verdicts = {word.lower() for word in re.findall(r"\b(?:(?:in)?correct|partial|missed)\b", answer, re.IGNORECASE)}
    return verdicts == {"correct"} if len(verdicts) == 1 and "incorrect" not in verdicts else None
