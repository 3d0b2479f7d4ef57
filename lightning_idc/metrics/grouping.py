"""What a protocol scores: which pairs, and which references together."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from lightning_idc.metrics.captions import some
from lightning_idc.metrics.no_change import CHANGE, NO_CHANGE, list_differences
from lightning_idc.utils.errors import DataError

T = TypeVar("T")
HARDEST = 0.25
CARD_WORDS = 60
# "000017.png" of a change and "000017.png_n" without one, as DUDA and CLIP4IDC name them; "17c" and "17nc" are ProCap's
_CLEVR = re.compile(r"(?:CLEVR_(?:default|semantic|nonsemantic)_)?(\d{1,9})(?:\.png)?(c|_n|nc)?")
_SAME = frozenset(["_n", "nc"])


@dataclass(frozen=True)
class ReferenceRecord:
    """References of a pair, or of one of several records of it.

    Args:
        id: of the pair, and of the caption that is scored against the references.
        references: may be empty texts, as in Spot-the-Diff.
        change_type: as the benchmark names it; ``change`` where it says no more than that.
        iou: overlap of the two views.
        split: that the file says it is of; None where it says nothing.
    """

    id: str
    references: tuple[str, ...]
    change_type: str | None = None
    iou: float | None = None
    split: str | None = None


Parts = dict[str, list[ReferenceRecord]]
"""Named corpora, each scored on its own; the first is the headline."""


def each_pair(truths: Sequence[ReferenceRecord]) -> Parts:
    """Every pair once, each with at least one reference that says something.

    Raises:
        DataError: a pair comes twice, or all its references are empty.
    """
    seen: set[str] = set()
    twice = [truth.id for truth in truths if truth.id in seen or seen.add(truth.id)]  # type: ignore[func-returns-value]
    if twice:
        raise DataError(
            f"{len(twice)} records repeat a pair: {some(twice)}; name a protocol that says what that means "
            "(spot-the-diff/grouped: their references together; spot-the-diff/entry: each record on its own)"
        )
    empty = [truth.id for truth in truths if not any(text.strip() for text in truth.references)]
    if empty:
        raise DataError(
            f"{len(empty)} of {len(truths)} pairs have no reference that says anything: {some(empty)}; they would "
            "score 0. Leave them out, or name a protocol that keeps them (spot-the-diff/grouped)"
        )
    return {"all": list(truths)}


def grouped(truths: Sequence[ReferenceRecord]) -> Parts:
    """Every pair once, against the references of all its records."""
    return {"all": _merged(truths)}


def by_entry(truths: Sequence[ReferenceRecord]) -> Parts:
    """Every record on its own, against the same caption where they are of one pair."""
    return {"all": list(truths)}


def joined(truths: Sequence[ReferenceRecord]) -> Parts:
    """Every pair once, against one paragraph of all its sentences, cut after 60 words as CARD (Tu et al. 2024) does."""
    return {"all": [replace(t, references=(paragraph(t.references, CARD_WORDS),)) for t in _merged(truths)]}


def whole(truths: Sequence[ReferenceRecord]) -> Parts:
    """Every pair once, against one paragraph of all its sentences."""
    return {"all": [replace(truth, references=(paragraph(truth.references),)) for truth in _merged(truths)]}


def by_reference(truths: Sequence[ReferenceRecord]) -> Parts:
    """Every reference on its own.

    Raises:
        DataError: a pair has none, and would not be scored.
    """
    pairs = _merged(truths)
    silent = [truth.id for truth in pairs if not truth.references]
    if silent:
        raise DataError(
            f"{len(silent)} of {len(pairs)} pairs have no reference: {some(silent)}; give them one, or leave them out"
        )
    return {"all": [replace(truth, references=(text,)) for truth in truths for text in truth.references]}


def change_and_no_change(truths: Sequence[ReferenceRecord]) -> Parts:
    """All pairs as one corpus; then those that changed and those that did not, each as a corpus of its own."""
    parts = each_pair(truths)
    changed = [truth for truth in truths if has_changed(truth)]
    same = [truth for truth in truths if not has_changed(truth)]
    return parts | ({"change": changed, "no change": same} if changed and same else {})


def differences(truths: Sequence[ReferenceRecord]) -> Parts:
    """Pairs that changed, each with the list of its differences; then those that did not, with an empty list.

    References of all records of a pair belong together; each sentence of them is one difference.

    Raises:
        DataError: a pair that changed, by its type, has no reference that says anything.
    """
    pairs = _merged(truths)
    typed = [truth for truth in pairs if truth.change_type not in (None, NO_CHANGE)]
    if untold := [truth.id for truth in typed if not any(text.strip() for text in truth.references)]:
        raise DataError(
            f"{len(untold)} of {len(typed)} pairs with a type of change have no reference that says anything: "
            f"{some(untold)}; they would count as unchanged. Give them references, or leave them out"
        )
    listed = [
        replace(truth, references=() if truth.change_type == NO_CHANGE else tuple(list_differences(truth.references)))
        for truth in pairs
    ]
    parts = {
        "changed": [truth for truth in listed if truth.references],
        "unchanged": [truth for truth in listed if not truth.references],
    }
    return {name: part for name, part in parts.items() if part}


def first_differences(truths: Sequence[ReferenceRecord]) -> Parts:
    """The same with the first reference of a pair alone, where the others say it in other words."""
    return differences([replace(truth, references=truth.references[:1]) for truth in _merged(truths)])


def changed_pairs(truths: Sequence[ReferenceRecord]) -> Parts:
    """Only the pairs that changed.

    Raises:
        DataError: there are none.
    """
    return {"change": _some_of([truth for truth in each_pair(truths)["all"] if has_changed(truth)], "changed")}


def unchanged_pairs(truths: Sequence[ReferenceRecord]) -> Parts:
    """Only the pairs that did not change.

    Raises:
        DataError: there are none.
    """
    return {"no change": _some_of([t for t in each_pair(truths)["all"] if not has_changed(t)], "unchanged")}


def by_type(truths: Sequence[ReferenceRecord]) -> Parts:
    """The pairs that changed, and those of each type of change, each as a corpus of its own.

    Raises:
        DataError: a type is unknown.
    """
    changed = changed_pairs(truths)["change"]
    unknown = [truth.id for truth in changed if truth.change_type in (None, CHANGE)]
    if unknown:
        raise DataError(
            f"{len(unknown)} of {len(changed)} changed pairs have no type of change: {some(unknown)}; "
            "give a file of them (--types type_mapping.json)"
        )
    types = sorted({str(truth.change_type) for truth in changed})
    return {"change": changed} | {kind: [truth for truth in changed if truth.change_type == kind] for kind in types}


def by_iou(truths: Sequence[ReferenceRecord]) -> Parts:
    """The pairs that changed, then the quarter with the least and the quarter with the most overlap of views.

    DUDA (Park et al. 2019) calls them the hardest and the easiest.

    Raises:
        DataError: an overlap is unknown, or there are fewer than four pairs.
    """
    changed = changed_pairs(truths)["change"]
    unknown = [truth.id for truth in changed if truth.iou is None]
    if unknown:
        raise DataError(
            f"{len(unknown)} of {len(changed)} changed pairs have no IoU: {some(unknown)}; "
            "give a file of them (--iou change_captions_by_IOU.json)"
        )
    found = quarters({truth.id: truth.iou for truth in changed if truth.iou is not None})
    if not found:
        raise DataError(f"{len(changed)} changed pairs cannot be cut into quarters; there must be at least 4")
    of = {truth.id: truth for truth in changed}
    return {"change": changed} | {name: [of[id] for id in ids] for name, ids in found.items()}


def quarters(ious: Mapping[str, float]) -> dict[str, list[str]]:
    """Ids of the pairs with the least and with the most overlap of views; {} where there are fewer than four."""
    count = int(HARDEST * len(ious))
    ordered = sorted(ious, key=lambda id: (ious[id], id))
    return {"hardest quarter": ordered[:count], "easiest quarter": ordered[-count:]} if count else {}


def has_changed(truth: ReferenceRecord) -> bool:
    """Whether a pair changed, by its type or, in CLEVR-Change's files, by its id.

    Raises:
        DataError: neither says.
    """
    if truth.change_type is not None:
        return truth.change_type != NO_CHANGE
    named = _CLEVR.fullmatch(truth.id)
    if not named:
        raise DataError(
            f"pair {truth.id!r}: whether it changed is unknown; give its change_type, "
            "or ids as in CLEVR-Change's files (000017.png and 000017.png_n)"
        )
    return named[2] not in _SAME


def with_types(truths: Sequence[ReferenceRecord], types: Mapping[str, str]) -> list[ReferenceRecord]:
    """Truths with their types of change; those of unchanged pairs are known by their ids."""
    known = _by_number(types)
    return [
        replace(truth, change_type=_found(truth, types, known) if has_changed(truth) else NO_CHANGE) for truth in truths
    ]


def with_ious(truths: Sequence[ReferenceRecord], ious: Mapping[str, float]) -> list[ReferenceRecord]:
    """Truths with the overlaps of their views."""
    known = _by_number(ious)
    return [replace(truth, iou=_found(truth, ious, known)) for truth in truths]


def paragraph(sentences: Sequence[str], max_words: int | None = None) -> str:
    """One text of several sentences, in their order, with a full stop between them.

    Args:
        sentences: in their order; an empty one leaves a full stop, as in CARD's annotations.
        max_words: words after which the text is cut.
    """
    text = ". ".join([*(sentence.rstrip(" .") for sentence in sentences[:-1]), *sentences[-1:]])
    words = text.split()
    return text if max_words is None or len(words) <= max_words else " ".join(words[:max_words])


def _merged(truths: Sequence[ReferenceRecord]) -> list[ReferenceRecord]:
    """Records of one pair together, with the type of the first.

    Raises:
        DataError: some of them say that nothing changed, and others name a change.
    """
    pairs: dict[str, ReferenceRecord] = {}
    for truth in truths:
        first = pairs.get(truth.id)
        types = {None if one is None else one.change_type for one in (first, truth)} - {None}
        if NO_CHANGE in types and len(types) > 1:
            raise DataError(f"pair {truth.id!r} is of {' and of '.join(sorted(map(str, types)))}; name its one type")
        pairs[truth.id] = truth if first is None else replace(first, references=first.references + truth.references)
    return list(pairs.values())


def _some_of(truths: list[ReferenceRecord], which: str) -> list[ReferenceRecord]:
    if not truths:
        raise DataError(f"no pair is {which}, so there is nothing to score; is this the file of the other pairs?")
    return truths


def _by_number(values: Mapping[str, T]) -> dict[int, T]:
    return {int(named[1]): value for id, value in values.items() if (named := _CLEVR.fullmatch(id))}


def _found(truth: ReferenceRecord, values: Mapping[str, T], by_number: Mapping[int, T]) -> T | None:
    if truth.id in values:
        return values[truth.id]
    named = _CLEVR.fullmatch(truth.id)
    return by_number.get(int(named[1])) if named else None
