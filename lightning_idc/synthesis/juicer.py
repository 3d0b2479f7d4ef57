"""Read and write data-juicer JSON Lines: text, image paths, and fields for metadata and statistics."""

from __future__ import annotations

import json
import posixpath
from array import array
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from lightning_idc.synthesis.records import Record
from lightning_idc.utils.errors import DataError, DatasetNotFoundError
from lightning_idc.utils.files import digest

META, STATS = "__dj__meta__", "__dj__stats__"
IMAGE, END = "<__dj__image>", "<|__dj__eoc|>"
_PATHS = ("image_path1", "image_path2")
_BOXES = ("bbox_tag", "region_caption1", "region_caption2", "bbox_difference_captions")


class JsonLines:
    """Source of the samples in a data-juicer file.

    The text becomes the fact ``caption``; ``caption1`` and ``caption2`` become ``captions``. A single image is named
    ``image``, two images ``before`` and ``after``. Region metadata becomes ``areas``, and other values become facts
    with the same name. The fingerprint covers the paths of images, not their content.

    Args:
        path: local path or fsspec URL of the file; image paths are relative to its folder.

    Raises:
        DatasetNotFoundError: the file cannot be opened.
        DataError: the file is empty.
    """

    def __init__(self, path: str) -> None:
        import fsspec

        self._files, self._path = fsspec.core.url_to_fs(path)
        self._starts = array("q", [0])
        try:
            with self._files.open(self._path, "rb") as file:
                for line in file:
                    end = self._starts[-1] + len(line)
                    if line.strip():
                        self._starts.append(end)
                    else:
                        self._starts[-1] = end  # a blank line is appended to the previous sample
        except OSError as error:
            raise DatasetNotFoundError(f"{path!r} cannot be read ({error}); expected a file of JSON lines") from error
        if len(self._starts) < 2:
            raise DataError(f"{path!r} has no line; expected a sample of data-juicer in each")

    @cached_property
    def fingerprint(self) -> str:
        return digest(self._read(0, len(self)))

    def __len__(self) -> int:
        return len(self._starts) - 1

    def record(self, index: int) -> Record:
        try:
            sample = json.loads(self._read(index, index + 1))
            images = sample.get("images") or [sample[name] for name in _PATHS if sample.get(name)]
            if len(images) > 2:
                raise ValueError(f"it has {len(images)} images; expected at most two")
            facts = _facts(sample)
        except (ValueError, TypeError, AttributeError, LookupError) as error:
            raise DataError(
                f"{self._path}, sample {index + 1} is not a data-juicer sample ({error}); expected an object with "
                "text, images or caption1 and caption2"
            ) from error
        names = ["image"] if len(images) == 1 else ["before", "after"]
        record = Record(str(sample.get("id") or f"{index:08}"), facts)
        record.images = {name: self._read_image(image) for name, image in zip(names, images, strict=False)}
        return record

    def _read(self, first: int, end: int) -> bytes:
        with self._files.open(self._path, "rb") as file:
            file.seek(self._starts[first])
            return bytes(file.read(self._starts[end] - self._starts[first]))

    def _read_image(self, path: str) -> bytes:
        file = posixpath.join(posixpath.dirname(self._path), path)
        try:
            return bytes(self._files.cat_file(file))
        except OSError:
            return b""  # only this record is dropped, when a stage decodes the image


def _facts(sample: Mapping[str, Any]) -> dict[str, Any]:
    reserved = ("id", "text", "images", "caption1", "caption2", META, STATS, *_PATHS)
    facts = {**{key: value for key, value in sample.items() if key not in reserved}, **(sample.get(META) or {})}
    if sample.get(STATS):
        facts["stats"] = sample[STATS]
    if sample.get("text"):
        facts.setdefault("caption", sample["text"].replace(IMAGE, "").replace(END, "").strip())
    if "caption1" in sample and "caption2" in sample:
        facts.setdefault("captions", [sample["caption1"], sample["caption2"]])
    if facts.get(_BOXES[0]) is not None:
        areas = list(_areas(facts))
        facts = {key: value for key, value in facts.items() if key not in _BOXES}
        facts.setdefault("areas", areas)
    return facts


def _areas(meta: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Convert boxes from centre and size to areas; a box of zeros marks an empty slot."""
    for number, (x, y, width, height) in enumerate(meta[_BOXES[0]]):
        if width * height == 0:
            continue
        area: dict[str, Any] = {"box": [x - width / 2, y - height / 2, x + width / 2, y + height / 2], "dropped": None}
        first, second, difference = (meta.get(name) for name in _BOXES[1:])
        if first and second:
            area["captions"] = [first[number], second[number]]
        if difference:
            area["difference"] = difference[number]
        yield area


def sample_of(facts: Mapping[str, Any], id: str, scores: Mapping[str, float], images: list[str]) -> dict[str, Any]:
    """Convert a record to a data-juicer sample with the field names of its Img-Diff operators.

    Args:
        facts: facts of the record.
        id: id of the record.
        scores: scores measured by the stages.
        images: paths of the images, in order.
    """
    captions = facts.get("captions") or []
    text = facts.get("summary") or facts.get("caption") or " ".join(map(str, captions))
    sample: dict[str, Any] = {"id": id, "text": f"{IMAGE * len(images)} {text} {END}".strip(), "images": images}
    if len(images) == 2:
        sample.update(zip(_PATHS, images, strict=True))
    if len(captions) == 2:
        sample["caption1"], sample["caption2"] = captions
    areas = [area for area in facts.get("areas") or [] if area.get("dropped") is None]
    boxes = {}
    if areas:
        corners = [area["box"] for area in areas]
        values = [[(a + c) / 2, (b + d) / 2, c - a, d - b] for a, b, c, d in corners]
        pairs = [area.get("captions") or ["", ""] for area in areas]
        differences = [area.get("difference", "") for area in areas]
        boxes = dict(zip(_BOXES, (values, *map(list, zip(*pairs, strict=True)), differences), strict=True))
    return {**sample, META: {**facts, **boxes}, STATS: dict(scores)}
