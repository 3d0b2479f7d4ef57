"""Grouping of references by protocols: the pairs to score, and the references of each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from lightning_idc.metrics.captions import first_ids
from lightning_idc.metrics.change_facts import ChangeFacts
from lightning_idc.metrics.no_change import CHANGE, NO_CHANGE, list_differences
from lightning_idc.utils.errors import DataError

T = TypeVar("T")
QUARTER = 0.25
CARD_WORDS = 60
"""Number of words after which CARD cuts paragraphs."""
# "000017.png" of a change and "000017.png_n" without one, as DUDA and CLIP4IDC name them; "17c" and "17nc" are ProCap's
_CLEVR = re.compile(r"(?:CLEVR_(?:default|semantic|nonsemantic)_)?(\d{1,9})(?:\.png)?(c|_n|nc)?")
_UNCHANGED_SUFFIXES = frozenset(["_n", "nc"])


@dataclass(frozen=True)
class ReferenceRecord:
    """References of a pair, or of one of its records.

    Args:
        id: pair id.
        references: texts, some of which may be empty, as in Spot-the-Diff.
        change_type: name of the type in the benchmark; ``change`` if the type is not known.
        iou: overlap of the two views.
        split: split of the record in the file, or None.
        change: exact facts of the change, of pairs from a generator.
    """

    id: str
    references: tuple[str, ...]
    change_type: str | None = None
    iou: float | None = None
    split: str | None = None
    change: ChangeFacts | None = None


Parts = dict[str, list[ReferenceRecord]]
"""Corpora by name, which are scored separately; the first one is the headline."""


def each_pair(records: Sequence[ReferenceRecord]) -> Parts:
    """Every pair once, each with at least one reference with text.

    Raises:
        DataError: a pair repeats, or all its references are empty.
    """
    seen: set[str] = set()
    repeated = [record.id for record in records if record.id in seen or seen.add(record.id)]  # type: ignore[func-returns-value]
    if repeated:
        raise DataError(
            f"{len(repeated)} records repeat a pair: {first_ids(repeated)}; choose spot-the-diff/grouped to score them "
            "together or spot-the-diff/entry to score them separately"
        )
    empty = [record.id for record in records if not _has_text(record)]
    if empty:
        raise DataError(
            f"{len(empty)} of {len(records)} pairs have no reference with text: {first_ids(empty)}; they would "
            "score 0: leave them out, or choose a protocol that includes them (spot-the-diff/grouped)"
        )
    return {"all": list(records)}


def grouped(records: Sequence[ReferenceRecord]) -> Parts:
    """Every pair once, against the references of all its records."""
    return {"all": _merged(records)}


def by_entry(records: Sequence[ReferenceRecord]) -> Parts:
    """Every record separately; records of one pair share its caption."""
    return {"all": list(records)}


def short_paragraphs(records: Sequence[ReferenceRecord]) -> Parts:
    """Every pair once, against one paragraph of all its sentences, cut after 60 words as CARD (Tu et al. 2024) does."""
    pairs = _merged(records)
    return {"all": [replace(pair, references=(paragraph(pair.references, CARD_WORDS),)) for pair in pairs]}


def paragraphs(records: Sequence[ReferenceRecord]) -> Parts:
    """Every pair once, against one paragraph of all its sentences."""
    return {"all": [replace(record, references=(paragraph(record.references),)) for record in _merged(records)]}


def by_reference(records: Sequence[ReferenceRecord]) -> Parts:
    """Every reference separately.

    Raises:
        DataError: a pair has no reference.
    """
    pairs = _merged(records)
    without_references = [record.id for record in pairs if not record.references]
    if without_references:
        raise DataError(
            f"{len(without_references)} of {len(pairs)} pairs have no reference: {first_ids(without_references)}; "
            "add references, or leave them out"
        )
    return {"all": [replace(record, references=(text,)) for record in records for text in record.references]}


def change_and_no_change(records: Sequence[ReferenceRecord]) -> Parts:
    """All pairs as one corpus, then changed and unchanged pairs as separate corpora."""
    parts = each_pair(records)
    changed = [record for record in records if has_changed(record)]
    same = [record for record in records if not has_changed(record)]
    return parts | ({"change": changed, "no change": same} if changed and same else {})


def differences(records: Sequence[ReferenceRecord]) -> Parts:
    """Changed pairs with the list of their differences, then unchanged pairs with an empty list.

    References of all records of a pair belong together; each sentence of them is one difference.

    Raises:
        DataError: a pair whose type is a change has no reference with text.
    """
    pairs = _merged(records)
    with_type = [record for record in pairs if record.change_type not in (None, NO_CHANGE)]
    empty = [record.id for record in with_type if not _has_text(record)]
    if empty:
        raise DataError(
            f"{len(empty)} of {len(with_type)} pairs with a type of change have no reference with text: "
            f"{first_ids(empty)}; they would count as unchanged: add references, or leave them out"
        )
    lists = [() if pair.change_type == NO_CHANGE else tuple(list_differences(pair.references)) for pair in pairs]
    pairs = [replace(pair, references=texts) for pair, texts in zip(pairs, lists, strict=True)]
    parts = {
        "changed": [record for record in pairs if record.references],
        "unchanged": [record for record in pairs if not record.references],
    }
    return {name: part for name, part in parts.items() if part}


def first_differences(records: Sequence[ReferenceRecord]) -> Parts:
    """As :func:`differences`, but with only the first reference of each pair, for data whose others are paraphrases."""
    return differences([replace(record, references=record.references[:1]) for record in _merged(records)])


def by_operator_and_tier(records: Sequence[ReferenceRecord]) -> Parts:
    """All pairs, as one list of differences each; then changed and unchanged pairs, each tier and each operator.

    Raises:
        DataError: see :func:`differences`.
    """
    parts = differences(records)
    changed = parts.get("changed", [])
    tiers: Parts = {"easy": [], "medium": [], "hard": []}
    operators: Parts = {}
    for record in changed:
        if record.change is not None:
            if record.change.tier is not None:
                tiers.setdefault(record.change.tier, []).append(record)
            operators.setdefault(record.change.operator, []).append(record)
    named_tiers = {name: part for name, part in tiers.items() if part}
    everything = [*changed, *parts.get("unchanged", [])]
    return {"all": everything, **parts, **named_tiers, **dict(sorted(operators.items()))}


def changed_pairs(records: Sequence[ReferenceRecord]) -> Parts:
    """Changed pairs only.

    Raises:
        DataError: there is no such pair.
    """
    return {"change": _not_empty([record for record in each_pair(records)["all"] if has_changed(record)], "changed")}


def unchanged_pairs(records: Sequence[ReferenceRecord]) -> Parts:
    """Unchanged pairs only.

    Raises:
        DataError: there is no such pair.
    """
    unchanged = [record for record in each_pair(records)["all"] if not has_changed(record)]
    return {"no change": _not_empty(unchanged, "unchanged")}


def by_type(records: Sequence[ReferenceRecord]) -> Parts:
    """All changed pairs, then each type of change as a separate corpus.

    Raises:
        DataError: a type is unknown.
    """
    changed = changed_pairs(records)["change"]
    unknown = [record.id for record in changed if record.change_type in (None, CHANGE)]
    if unknown:
        raise DataError(
            f"{len(unknown)} of {len(changed)} changed pairs have no type of change: {first_ids(unknown)}; "
            "pass --types type_mapping.json"
        )
    types = sorted({str(record.change_type) for record in changed})
    return {"change": changed} | {kind: [record for record in changed if record.change_type == kind] for kind in types}


def by_iou(records: Sequence[ReferenceRecord]) -> Parts:
    """All changed pairs, then the quarters with the least and with the most overlap of views.

    DUDA (Park et al. 2019) calls them the hardest and the easiest.

    Raises:
        DataError: an overlap is unknown, or there are fewer than four pairs.
    """
    changed = changed_pairs(records)["change"]
    unknown = [record.id for record in changed if record.iou is None]
    if unknown:
        raise DataError(
            f"{len(unknown)} of {len(changed)} changed pairs have no IoU: {first_ids(unknown)}; "
            "pass --iou change_captions_by_IOU.json"
        )
    parts_of_ids = quarters({record.id: record.iou for record in changed if record.iou is not None})
    if not parts_of_ids:
        raise DataError(f"{len(changed)} changed pairs cannot be divided into quarters; expected at least 4")
    record_of = {record.id: record for record in changed}
    return {"change": changed} | {name: [record_of[id] for id in ids] for name, ids in parts_of_ids.items()}


def quarters(ious: Mapping[str, float]) -> dict[str, list[str]]:
    """Ids of the pairs with the least and with the most overlap of views; {} where there are fewer than four."""
    count = int(QUARTER * len(ious))
    ordered = sorted(ious, key=lambda id: (ious[id], id))
    return {"hardest quarter": ordered[:count], "easiest quarter": ordered[-count:]} if count else {}


def has_changed(record: ReferenceRecord) -> bool:
    """Whether a pair changed, by its type or, in CLEVR-Change's files, by its id.

    Raises:
        DataError: the pair has no type, and its id is not one of CLEVR-Change.
    """
    if record.change_type is not None:
        return record.change_type != NO_CHANGE
    match = _CLEVR.fullmatch(record.id)
    if not match:
        raise DataError(
            f"pair {record.id!r}: whether it changed is unknown; set its change_type, "
            "or use ids as in CLEVR-Change's files (000017.png and 000017.png_n)"
        )
    return match[2] not in _UNCHANGED_SUFFIXES


def with_types(records: Sequence[ReferenceRecord], types: Mapping[str, str]) -> list[ReferenceRecord]:
    """Records with types of change; unchanged pairs are recognised by their ids."""
    by_number = _by_number(types)
    return [
        replace(record, change_type=_value_of(record, types, by_number) if has_changed(record) else NO_CHANGE)
        for record in records
    ]


def with_ious(records: Sequence[ReferenceRecord], ious: Mapping[str, float]) -> list[ReferenceRecord]:
    """Records with the overlaps of their views."""
    by_number = _by_number(ious)
    return [replace(record, iou=_value_of(record, ious, by_number)) for record in records]


def paragraph(sentences: Sequence[str], max_words: int | None = None) -> str:
    """Sentences joined by full stops.

    Args:
        sentences: sentences in order; an empty one leaves a full stop, as in CARD's annotations.
        max_words: number of words after which the text is cut.
    """
    text = ". ".join([*(sentence.rstrip(" .") for sentence in sentences[:-1]), *sentences[-1:]])
    words = text.split()
    return text if max_words is None or len(words) <= max_words else " ".join(words[:max_words])


def _has_text(record: ReferenceRecord) -> bool:
    return any(text.strip() for text in record.references)


def _merged(records: Sequence[ReferenceRecord]) -> list[ReferenceRecord]:
    """Records of each pair merged, with the type of the first.

    Raises:
        DataError: some records of a pair are unchanged and others changed.
    """
    pairs: dict[str, ReferenceRecord] = {}
    for record in records:
        first = pairs.get(record.id)
        types = {None if other is None else other.change_type for other in (first, record)} - {None}
        if NO_CHANGE in types and len(types) > 1:
            names = " and ".join(sorted(map(str, types)))
            raise DataError(f"pair {record.id!r} has records of the types {names}; expected one type per pair")
        pairs[record.id] = record if first is None else replace(first, references=first.references + record.references)
    return list(pairs.values())


def _not_empty(records: list[ReferenceRecord], kind: str) -> list[ReferenceRecord]:
    if not records:
        raise DataError(f"no pair is {kind}; expected at least one in this file")
    return records


def _by_number(values: Mapping[str, T]) -> dict[int, T]:
    return {int(match[1]): value for id, value in values.items() if (match := _CLEVR.fullmatch(id))}


def _value_of(record: ReferenceRecord, values: Mapping[str, T], by_number: Mapping[int, T]) -> T | None:
    if record.id in values:
        return values[record.id]
    match = _CLEVR.fullmatch(record.id)
    return by_number.get(int(match[1])) if match else None
