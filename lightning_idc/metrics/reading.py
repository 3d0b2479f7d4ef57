"""Readers of caption and reference files of other programs.

The fields determine the format. Errors name the file and the record; no record is dropped silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning_idc.metrics.captions import first_ids
from lightning_idc.metrics.change_facts import Box, ChangeFacts, read_boxes
from lightning_idc.metrics.content import CAPTION_FIELDS, ID_FIELDS, REFERENCE_FIELDS, AnnotationFile
from lightning_idc.metrics.grouping import ReferenceRecord
from lightning_idc.utils.errors import ConfigError, DataError
from lightning_idc.utils.jsonfiles import check_text, short


@dataclass(frozen=True)
class Predictions:
    """Captions of a file, and its references.

    Args:
        captions: caption by pair id.
        form: format of the file, in words.
        digest: SHA-256 of the file's unpacked bytes.
        references: references in the same file, if it has any.
        boxes: boxes of the claims by pair id, of records that have them.
    """

    captions: dict[str, str]
    form: str
    digest: str
    references: list[ReferenceRecord] = field(default_factory=list)
    boxes: dict[str, tuple[Box, ...]] = field(default_factory=dict)


def read_predictions(path: str | Path, field: str | None = None) -> Predictions:
    """Read captions from COCO results, a map from id to text, or predictions.jsonl of this library, also as JSONL.

    Args:
        path: path of the file.
        field: name of the caption field; caption, prediction or text when None, whichever a record has.

    Raises:
        DataError: the format is unknown, an id repeats, or a record has two captions and no field is named.
    """
    content = AnnotationFile(path)
    if content.form == "map":
        captions = {id: _single_text(value, f"{content.name}: {id!r}") for id, value in content.items.items()}
        return Predictions(_checked(captions, content), "map from id to text", content.digest)
    records = [(where, _as_object(record, where)) for where, record in content.records()]
    captions, boxes = {}, {}
    for where, record in records:
        id = _id(record, where)
        caption = _caption(record, where, field)
        if id in captions:
            difference = "with the same caption" if captions[id] == caption else "with another caption"
            raise DataError(f"{where}: pair {id!r} appears twice, {difference}; expected one caption per pair")
        captions[id] = caption
        if record.get("boxes"):
            boxes[id] = read_boxes(record["boxes"], f"{where}: boxes")
    has_references = bool(records) and all("references" in record for _, record in records)
    references = [_reference_record(record, where) for where, record in records] if has_references else []
    form = "records with references" if has_references else "list of records"
    return Predictions(_checked(captions, content), form, content.digest, references, boxes)


def read_references(path: str | Path, split: str | None = None) -> list[ReferenceRecord]:
    """Read references from COCO annotations, a map from id to texts, or records with an id and texts, also as JSONL.

    Reads the files of CLEVR-Change (captions and reformatted), Spot-the-Diff, Image-Editing-Request and LEVIR-CC, and
    this library's predictions.jsonl. A pair may have several records, which the protocol groups.

    Args:
        path: path of the file; ``.gz`` is unpacked.
        split: split to select where records name several.

    Raises:
        ConfigError: the file does not have this split, or has several and none is selected.
        DataError: the format is unknown, or only some records name a split.
    """
    content = AnnotationFile(path)
    if content.form == "coco":
        return _coco_references(content)
    if content.form == "map":
        return [
            ReferenceRecord(id, tuple(_texts(value, f"{content.name}: {id!r}")))
            for id, value in _checked(content.items, content).items()
        ]
    records = [(where, _as_object(record, where)) for where, record in content.records()]
    splits = sorted({str(record["split"]) for _, record in records if record.get("split") is not None})
    without_split = [_id(record, where) for where, record in records if record.get("split") is None]
    if splits and without_split:
        raise DataError(
            f"{content.name}: {len(without_split)} of {len(records)} records have no split: "
            f"{first_ids(without_split)}; the others have {', '.join(splits)}; set the split of all records or of none"
        )
    if len(splits) > 1 or (splits and split not in (None, *splits)):
        if split not in splits:
            raise ConfigError(f"{content.name} contains the splits {', '.join(splits)}; select one with --split")
        records = [(where, record) for where, record in records if str(record["split"]) == split]
    if not records:
        raise DataError(f"{content.name} contains no references")
    return [_reference_record(record, where) for where, record in records]


def read_types(path: str | Path) -> dict[str, str]:
    """Type of change by id, from a map of types to ids (CLEVR-Change's type_mapping.json) or of ids to types.

    Raises:
        DataError: the format is unknown, or an id has two types.
    """
    content = AnnotationFile(path)
    types: dict[str, str] = {}
    for key, value in _map_of(content).items():
        pairs = [(id, key) for id in value] if isinstance(value, list) else [(key, value)]
        for id, kind in pairs:
            if not isinstance(id, str) or not isinstance(kind, str):
                raise DataError(f"{content.name}: {short(id)} has the type {short(kind)}; expected two texts")
            if types.setdefault(id, kind) != kind:
                raise DataError(f"{content.name}: {id!r} is of type {types[id]!r} and of type {kind!r}")
    return types


def read_ious(path: str | Path) -> dict[str, float]:
    """Overlap of views by id.

    Raises:
        DataError: an overlap is not a number from 0 to 1.
    """
    content = AnnotationFile(path)
    ious = {}
    for id, value in _map_of(content).items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise DataError(f"{content.name}: the IoU of {id!r} is {short(value)}; expected a number from 0 to 1")
        ious[id] = float(value)
    return ious


def read_vocabulary(path: str | Path) -> dict[str, int]:
    """Word ids by word.

    Raises:
        DataError: an id is not a whole number, or two words share one.
    """
    content = AnnotationFile(path)
    words: dict[str, int] = {}
    for word, number in _map_of(content).items():
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise DataError(f"{content.name}: {word!r} has the number {short(number)}; expected a whole number")
        words[word] = number
    if len(set(words.values())) < len(words):
        raise DataError(f"{content.name}: two words have the same number")
    return words


def _map_of(content: AnnotationFile) -> dict[str, Any]:
    if content.form != "map":
        raise DataError(f"{content.name} holds a list of records; expected a map")
    return dict(_checked(content.items, content))


def _checked(values: dict[str, Any], content: AnnotationFile) -> dict[str, Any]:
    if not values:
        raise DataError(f"{content.name} is empty")
    for key in values:
        check_text(key, f"{content.name}: the id {key!r}")
    return values


def _as_object(record: Any, where: str) -> dict[str, Any]:
    if not isinstance(record, dict):
        raise DataError(f"{where} is {short(record)}; expected an object with an id and a caption")
    return record


def _id(record: Mapping[str, Any], where: str) -> str:
    names = [name for name in ID_FIELDS if name in record]
    if not names:
        raise DataError(
            f"{where} has no id; expected one of {', '.join(ID_FIELDS)}; it has {', '.join(record) or 'no fields'}"
        )
    value = record[names[0]]
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise DataError(f"{where}: {names[0]} is {short(value)}; expected text or a whole number")
    return check_text(str(value), f"{where}: {names[0]}")


def _caption(record: Mapping[str, Any], where: str, field: str | None = None) -> str:
    names = [name for name in CAPTION_FIELDS if name in record] if field is None else [field]
    if not names:
        raise DataError(
            f"{where} has no caption; expected one of {', '.join(CAPTION_FIELDS)}; it has {', '.join(record)}"
        )
    if names[0] not in record:
        raise DataError(f"{where} has no field {field!r} (--field); it has {', '.join(record)}")
    if any(record[name] != record[names[0]] for name in names):
        # one of the fields is often the ground truth
        values = " and ".join(f"{name} {short(record[name])}" for name in names)
        raise DataError(f"{where} has {values}; name the caption field, such as --field {names[-1]}")
    return _single_text(record[names[0]], f"{where}: {names[0]}")


def _single_text(value: Any, where: str) -> str:
    # pycocoevalcap stores a caption in a list with one entry
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, dict) and set(value) == {"caption"}:
        value = value["caption"]
    if not isinstance(value, str):
        raise DataError(f"{where} is {short(value)}; expected one caption, as text")
    return check_text(value, where)


def _reference_record(record: Mapping[str, Any], where: str) -> ReferenceRecord:
    names = [name for name in REFERENCE_FIELDS if name in record]
    if not names:
        raise DataError(
            f"{where} has no references; expected one of {', '.join(REFERENCE_FIELDS)}; it has {', '.join(record)}"
        )
    kind, iou = record.get("change_type"), record.get("iou")
    if kind is not None and not isinstance(kind, str):
        raise DataError(f"{where}: change_type is {short(kind)}; expected text")
    if iou is not None and (isinstance(iou, bool) or not isinstance(iou, int | float) or not 0 <= iou <= 1):
        raise DataError(f"{where}: iou is {short(iou)}; expected a number from 0 to 1")
    texts, split = tuple(_texts(record[names[0]], f"{where}: {names[0]}")), record.get("split")
    change = None if record.get("change") is None else ChangeFacts.read(record["change"], where)
    return ReferenceRecord(_id(record, where), texts, kind, iou, None if split is None else str(split), change)


def _texts(value: Any, where: str) -> list[str]:
    """References: a text, or a list of texts, of token lists, or of objects with raw or caption."""
    items = value if isinstance(value, list) else [value]
    texts = []
    for item in items:
        if isinstance(item, dict):
            item = item.get("raw", item.get("caption"))
        if isinstance(item, list) and item and all(isinstance(token, str) for token in item):
            item = " ".join(item)
        if not isinstance(item, str):
            raise DataError(f"{where} holds {short(item)}; expected texts")
        texts.append(check_text(item, where))
    return texts


def _coco_references(content: AnnotationFile) -> list[ReferenceRecord]:
    """References of COCO annotations: one record per image, captions in the order of the file."""
    texts: dict[str, list[str]] = {}
    for number, image in enumerate(content.items.get("images", []), 1):
        # Spot-the-Diff's reformatted file lists an image once per record
        texts.setdefault(
            _id(_as_object(image, f"{content.name}, image {number}"), f"{content.name}, image {number}"), []
        )
    for number, annotation in enumerate(content.items["annotations"], 1):
        where = f"{content.name}, annotation {number}"
        record = dict(_as_object(annotation, where))
        record.pop("id", None)  # the id of the annotation, not of the image
        id = _id(record, where)
        if texts and "images" in content.items and id not in texts:
            raise DataError(f"{where}: image {id!r} is not among the file's images")
        texts.setdefault(id, []).append(_caption(record, where, "caption" if "caption" in record else None))
    if not texts:
        raise DataError(f"{content.name} contains no references")
    return [ReferenceRecord(id, tuple(pair_references)) for id, pair_references in texts.items()]
