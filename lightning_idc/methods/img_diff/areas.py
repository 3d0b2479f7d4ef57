"""Difference Area Generator (DAG): the boxes in which a pair differs, with a reason for each rejected one.

`PairSimilarity` filters pairs. :meth:`DifferenceAreas.process` then makes an `Area` of each region of a segmenter:

1. ``box`` and ``confidence`` (:meth:`DifferenceAreas._segment`), filtered by size and confidence,
2. ``similarity`` of the two crops (:meth:`DifferenceAreas._score_similarity`), filtered by difference,
3. ``match`` of crops and object names (:meth:`DifferenceAreas._score_names`), filtered by name,
4. non-maximum suppression of what is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from lightning_idc.methods.img_diff.filtering import (
    Area,
    accepted,
    drop_without_areas,
    filter_differences,
    filter_names,
    filter_pair,
    filter_shapes,
    suppress_overlap,
)
from lightning_idc.methods.img_diff.presets import Filters, check_matcher, load_filters
from lightning_idc.synthesis.models.base import ImageEncoder, ImageTextMatcher, Segmenter, crop
from lightning_idc.synthesis.models.embedded import ColorMatcher, PixelEncoder
from lightning_idc.synthesis.models.things import ChangedThings
from lightning_idc.synthesis.records import Record
from lightning_idc.synthesis.stages import PipelineStage
from lightning_idc.utils.boxes import box_iou


def cosines(encoder: ImageEncoder, first: Sequence[Tensor], second: Sequence[Tensor]) -> Tensor:
    """Cosine of each image with its partner, ``(N,)``; one call of the encoder for all."""
    vectors = encoder.encode([*first, *second])
    return (vectors[: len(first)] * vectors[len(first) :]).sum(1)


class PairSimilarity(PipelineStage):
    """Image Similarity Filter: drops pairs of too different and of too similar images.

    Args:
        encoder: image encoder.
        filters: name of a preset of `presets`.
        seed: random seed, as in `PipelineStage`.
    """

    reads = ("before", "after")

    def __init__(self, encoder: ImageEncoder | None = None, filters: str = "paper", seed: int = 0) -> None:
        super().__init__(seed)
        self.encoder = encoder or PixelEncoder()
        self.filters = load_filters(filters)

    def settings(self) -> dict[str, Any]:
        return {"encoder": self.encoder.settings(), "pair_similarity": list(self.filters.pair_similarity)}

    def process(self, records: list[Record]) -> list[Record]:
        images = zip(*(record.pair() for record in records), strict=True)
        for record, value in zip(records, cosines(self.encoder, *images).tolist(), strict=True):
            record.score(pair_similarity=value)
            filter_pair(record, value, self.filters)
        return records


@dataclass(frozen=True, slots=True)
class _NameQuery:
    """Crop of one area in one image, and the name of the object that it should show."""

    area: Area
    side: int
    """0 for the image before, 1 for the image after."""
    crop: Tensor
    name: str


class DifferenceAreas(PipelineStage):
    """Regions of a segmenter whose crops differ and show the named objects, without overlap.

    Writes the fact ``areas``, an `Area` per region. Names of objects come from the fact ``nouns``; without it, crops
    are not matched with names.

    Args:
        segmenter: segmenter of candidate regions.
        encoder: image encoder of crops.
        matcher: image-text matcher of crops and names.
        filters: name of a preset of `presets`.
        seed: random seed, as in `PipelineStage`.
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
        self.filters: Filters = check_matcher(load_filters(filters), self.matcher)

    def settings(self) -> dict[str, Any]:
        return {**self.model_settings(), "filters": self.filters.plain()}

    def process(self, records: list[Record]) -> list[Record]:
        self._segment(records)
        for record in records:
            filter_shapes(record.facts["areas"], record.facts["size"], self.filters)
        self._score_similarity(records)
        for record in records:
            filter_differences(record.facts["areas"], self.filters)
        self._score_names(records)
        for record in records:
            filter_names(record.facts["areas"], self.filters)
            suppress_overlap(accepted(record.facts["areas"]), self.filters)
            drop_without_areas(record, "no area left")
        return records

    def _segment(self, records: list[Record]) -> None:
        before, after = zip(*(record.pair() for record in records), strict=True)
        for record, regions in zip(records, self.segmenter.regions(before, after), strict=True):
            areas: list[Area] = [
                {"box": list(region.box), "confidence": round(region.confidence, 4), "dropped": None}
                for region in regions
            ]
            record.facts["size"], record.facts["areas"] = list(record.image("before").shape[1:]), areas

    def _score_similarity(self, records: list[Record]) -> None:
        areas = [(record, area) for record in records for area in accepted(record.facts["areas"])]
        if not areas:
            return
        crops = [[crop(record.pair()[side], area["box"]) for record, area in areas] for side in (0, 1)]
        for (_, area), value in zip(areas, cosines(self.encoder, *crops).tolist(), strict=True):
            area["similarity"] = round(value, 4)

    def _score_names(self, records: list[Record]) -> None:
        queries = [
            _NameQuery(area, side, crop(record.pair()[side], area["box"]), record.facts["nouns"][side])
            for record in records
            if record.facts.get("nouns")
            for area in accepted(record.facts["areas"])
            for side in (0, 1)
            if record.facts["nouns"][side] is not None
        ]
        if not queries:
            return
        scores = self.matcher.match([query.crop for query in queries], [query.name for query in queries]).tolist()
        for query, score in zip(queries, scores, strict=True):
            query.area.setdefault("match", [None, None])[query.side] = round(score, 4)


def box_scores(records: Sequence[Record], min_iou: float = 0.5) -> dict[str, float]:
    """Precision and recall of the accepted boxes against the fact ``true_boxes``.

    Each box is matched with at most one true box, of either image, in order of IoU.

    Args:
        records: records; dropped ones have no boxes.
        min_iou: minimum IoU of a match.
    """
    num_correct = num_predicted = num_true = 0
    for record in records:
        true_boxes: list[Sequence[float]] = []
        for boxes_of_edit in record.facts["true_boxes"]:
            for box in boxes_of_edit:
                # an object edited in place has nearly the same box in both images, and counts once
                if box is not None and all(box_iou(box, other) < 0.5 for other in true_boxes):
                    true_boxes.append(box)
        areas = accepted(record.facts.get("areas") or []) if record.dropped is None else []
        boxes = [area["box"] for area in areas]
        overlaps = (
            (box_iou(true_box, box), i, j) for i, true_box in enumerate(true_boxes) for j, box in enumerate(boxes)
        )
        matched: set[tuple[str, int]] = set()
        for iou, i, j in sorted(overlaps, reverse=True):
            if iou >= min_iou and ("true", i) not in matched and ("predicted", j) not in matched:
                matched |= {("true", i), ("predicted", j)}
                num_correct += 1
        num_predicted, num_true = num_predicted + len(boxes), num_true + len(true_boxes)
    return {
        "precision": num_correct / max(num_predicted, 1),
        "recall": num_correct / max(num_true, 1),
        "found": num_predicted,
        "true": num_true,
    }
