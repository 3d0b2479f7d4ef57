"""Difference Area Generator: the boxes in which a pair differs, with a reason for each that is left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from lightning_idc.data.synthetic.geometry import box_iou
from lightning_idc.methods.img_diff.filtering import (
    drop_without_areas,
    filter_differences,
    filter_names,
    filter_pair,
    filter_shapes,
    kept,
    suppress_overlap,
)
from lightning_idc.methods.img_diff.presets import Filters, check_matcher, filters_named
from lightning_idc.synthesis.models.base import ImageEncoder, ImageTextMatcher, Segmenter, crop
from lightning_idc.synthesis.models.embedded import ColorMatcher, PixelEncoder
from lightning_idc.synthesis.models.things import ChangedThings
from lightning_idc.synthesis.records import Record
from lightning_idc.synthesis.stages import PipelineStage


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
        images = zip(*(record.pair() for record in records), strict=True)
        for record, value in zip(records, cosines(self.encoder, *images).tolist(), strict=True):
            record.score(pair_similarity=value)
            filter_pair(record, value, self.filters)
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
        self.segmenter = segmenter or ChangedThings()
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
            filter_shapes(record.facts["areas"], record.facts["size"], self.filters)
        self._compare(records)
        for record in records:
            filter_differences(record.facts["areas"], self.filters)
        self._match(records)
        for record in records:
            filter_names(record.facts["areas"], self.filters)
            suppress_overlap(kept(record.facts["areas"]), self.filters)
            drop_without_areas(record, "no area left")
        return records

    def _compare(self, records: list[Record]) -> None:
        todo = [(record, area) for record in records for area in kept(record.facts["areas"])]
        if not todo:
            return
        crops = [[crop(record.pair()[side], area["box"]) for record, area in todo] for side in (0, 1)]
        for (_, area), value in zip(todo, cosines(self.encoder, *crops).tolist(), strict=True):
            area["similarity"] = round(value, 4)

    def _match(self, records: list[Record]) -> None:
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


def found_and_true(records: Sequence[Record], min_iou: float = 0.5) -> dict[str, float]:
    """Precision and recall of the kept boxes, where the fact ``true_boxes`` tells the truth.

    A region counts once: for the true box, of either picture, that it overlaps most.

    Args:
        records: dropped ones have no boxes.
        min_iou: IoU from which on a box is found.
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
            if value >= min_iou and ("true", i) not in used and ("found", j) not in used:
                used |= {("true", i), ("found", j)}
                right += 1
        found, true = found + len(boxes), true + len(truth)
    return {"precision": right / max(found, 1), "recall": right / max(true, 1), "found": found, "true": true}
