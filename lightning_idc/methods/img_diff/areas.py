"""Difference Area Generator: the boxes in which a pair differs, with a reason for each that is left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_idc.methods.img_diff.presets import Filters, check_matcher, filters_named
from lightning_idc.synthesis.records import Record
from lightning_idc.synthesis.slots.base import ImageEncoder, ImageTextMatcher, Segmenter, crop
from lightning_idc.synthesis.slots.contours import DifferenceContours, box_iou
from lightning_idc.synthesis.slots.embedded import ColorMatcher, PixelEncoder
from lightning_idc.synthesis.stages import PipelineStage


def reject(area: dict[str, Any], reason: str, value: float | str, limit: str) -> None:
    """Leave a region out; it stays in the record, for the audit page."""
    area["dropped"] = {"reason": reason, "value": value, "limit": limit}


def kept(areas: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Regions that no filter has left out."""
    return [area for area in areas if area["dropped"] is None]


def cosines(encoder: ImageEncoder, first: Sequence[Tensor], second: Sequence[Tensor]) -> Tensor:
    """Cosine of each picture with its partner, ``(N,)``; one call for both sides."""
    vectors = encoder.encode([*first, *second])
    return (vectors[: len(first)] * vectors[len(first) :]).sum(1)


class PairSimilarity(PipelineStage):
    """Image Similarity Filter: keeps pairs that are alike and not the same.

    Args:
        encoder: of pictures.
        filters: name of a preset; see `presets`.
        seed: see `PipelineStage`.
    """

    reads = ("before", "after")

    def __init__(self, encoder: ImageEncoder | None = None, filters: str = "paper", seed: int = 0) -> None:
        super().__init__(seed)
        self.encoder = encoder or PixelEncoder()
        self.filters = filters_named(filters)

    def settings(self) -> dict[str, Any]:
        return {"encoder": self.encoder.settings(), "pair_similarity": list(self.filters.pair_similarity)}

    def process(self, records: list[Record]) -> list[Record]:
        low, high = self.filters.pair_similarity
        images = zip(*(record.pair() for record in records), strict=True)
        for record, value in zip(records, cosines(self.encoder, *images).tolist(), strict=True):
            record.score(pair_similarity=value)
            if not low < value < high:
                reason = "pair too different" if value <= low else "pair too similar"
                record.drop(reason, round(value, 4), f"{low:g} to {high:g}")
        return records


class DifferenceAreas(PipelineStage):
    """Regions from a segmenter, kept where the crops differ and show what they should, without overlap.

    Writes the fact ``areas``: one entry per region with box, confidence, similarity, match and ``dropped``. The name
    of what should be seen comes from the fact ``nouns``; without it, crops are not matched with text.

    Args:
        segmenter: finds candidates.
        encoder: of crops.
        matcher: of crops and names.
        filters: name of a preset; see `presets`.
        seed: see `PipelineStage`.
    """

    reads = ("before", "after")

    def __init__(
        self,
        segmenter: Segmenter | None = None,
        encoder: ImageEncoder | None = None,
        matcher: ImageTextMatcher | None = None,
        filters: str = "paper",
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        self.segmenter = segmenter or DifferenceContours()
        self.encoder = encoder or PixelEncoder()
        self.matcher = matcher or ColorMatcher()
        self.filters: Filters = check_matcher(filters_named(filters), self.matcher)

    def settings(self) -> dict[str, Any]:
        return {**self.model_settings(), "filters": self.filters.plain()}

    def process(self, records: list[Record]) -> list[Record]:
        before, after = zip(*(record.pair() for record in records), strict=True)
        regions = self.segmenter.regions(before, after)
        for record, found in zip(records, regions, strict=True):
            record.facts["size"] = list(record.image("before").shape[1:])
            record.facts["areas"] = [
                {"box": list(region.box), "confidence": round(region.confidence, 4), "dropped": None}
                for region in found
            ]
            self._by_shape(record)
        self._by_difference(records)
        self._by_name(records)
        for record in records:
            suppress_overlap(kept(record.facts["areas"]), self.filters)
            if not kept(record.facts["areas"]):
                record.drop("no area left", 0, f"1 or more of {len(record.facts['areas'])}")
        return records

    def _by_shape(self, record: Record) -> None:
        height, width = record.image("before").shape[1:]
        low, high = self.filters.area
        for area in record.facts["areas"]:
            x1, y1, x2, y2 = area["box"]
            share = (x2 - x1) * (y2 - y1) / (height * width)
            if area["confidence"] <= self.filters.confidence:
                reject(area, "confidence", area["confidence"], f"above {self.filters.confidence:g}")
            elif not low <= share <= high:
                reject(area, "box size", round(share, 4), f"{low:g} to {high:g} of the picture")

    def _by_difference(self, records: list[Record]) -> None:
        todo = [(record, area) for record in records for area in kept(record.facts["areas"])]
        if not todo:
            return
        crops = [[crop(record.pair()[side], area["box"]) for record, area in todo] for side in (0, 1)]
        for (_, area), value in zip(todo, cosines(self.encoder, *crops).tolist(), strict=True):
            area["similarity"] = round(value, 4)
            if value >= self.filters.crop_similarity:
                reject(area, "crops too similar", area["similarity"], f"below {self.filters.crop_similarity:g}")

    def _by_name(self, records: list[Record]) -> None:
        named = [record for record in records if record.facts.get("nouns")]
        todo = [
            (area, side, crop(record.pair()[side], area["box"]), record.facts["nouns"][side])
            for record in named
            for area in kept(record.facts["areas"])
            for side in (0, 1)
            if record.facts["nouns"][side] is not None
        ]
        if not todo:
            return
        scores = self.matcher.match([item[2] for item in todo], [item[3] for item in todo]).tolist()
        for (area, side, _, _), score in zip(todo, scores, strict=True):
            area.setdefault("match", [None, None])[side] = round(score, 4)
        for record in named:
            for area in kept(record.facts["areas"]):
                known = [score for score in area["match"] if score is not None]
                # where one side is empty by design, there is one name only
                value = max(known) if self.filters.sides_to_match == "one" else min(known)
                if value <= self.filters.region_match:
                    reject(area, "no such object", value, f"above {self.filters.region_match:g}")


def suppress_overlap(areas: list[dict[str, Any]], filters: Filters) -> None:
    """Leave out regions that overlap one that is kept, and those beyond the greatest number.

    Args:
        areas: with ``similarity``; those that are left out are marked.
        filters: overlap, which one is kept, and how many.
    """
    order = sorted(areas, key=lambda area: area["similarity"]) if filters.keep == "most different" else list(areas)
    chosen: list[dict[str, Any]] = []
    for area in order:
        over = max((box_iou(area["box"], other["box"]) for other in chosen), default=0.0)
        if over > filters.overlap:
            reject(area, "overlap", round(over, 4), f"at most {filters.overlap:g}")
        elif filters.most_regions is not None and len(chosen) == filters.most_regions:
            reject(area, "too many areas", len(areas), f"at most {filters.most_regions}")
        else:
            chosen.append(area)


def found_and_true(records: Sequence[Record], least: float = 0.5) -> dict[str, float]:
    """Precision and recall of the kept boxes, where the fact ``true_boxes`` tells the truth.

    A region counts once: for the true box, of either picture, that it overlaps most.

    Args:
        records: dropped ones have no boxes.
        least: IoU from which on a box is found.
    """
    right = found = true = 0
    for record in records:
        truth: list[Sequence[float]] = []
        for sides in record.facts["true_boxes"]:
            for box in sides:
                # what changes in place has nearly one box in both pictures
                if box is not None and all(box_iou(box, other) < 0.5 for other in truth):
                    truth.append(box)
        boxes = [area["box"] for area in kept(record.facts.get("areas") or [])] if record.dropped is None else []
        pairs = sorted(((box_iou(a, b), i, j) for i, a in enumerate(truth) for j, b in enumerate(boxes)), reverse=True)
        used: set[tuple[str, int]] = set()
        for value, i, j in pairs:
            if value >= least and ("true", i) not in used and ("found", j) not in used:
                used |= {("true", i), ("found", j)}
                right += 1
        found, true = found + len(boxes), true + len(truth)
    return {"precision": right / max(found, 1), "recall": right / max(true, 1), "found": found, "true": true}


def tensor_of(boxes: Sequence[Sequence[float]]) -> Tensor:
    """Boxes of both pictures as `PairSample` holds them, ``(N, 2, 4)``."""
    return torch.tensor([[list(box), list(box)] for box in boxes], dtype=torch.float32).reshape(-1, 2, 4)
