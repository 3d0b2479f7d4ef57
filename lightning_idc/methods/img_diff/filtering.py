"""Filters of Img-Diff as functions of stored scores, so that thresholds can be changed without running a model.

The stages compute scores and then call these functions. A run with the preset ``scores`` rejects nothing; `Refilter`
then applies any other preset to its scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

from lightning_idc.methods.img_diff.presets import SCORES, Filters, load_filters
from lightning_idc.synthesis.records import Record
from lightning_idc.synthesis.stages import PipelineStage
from lightning_idc.utils.boxes import box_iou
from lightning_idc.utils.errors import ConfigError


class Area(TypedDict, total=False):
    """One region in which a pair may differ; an entry of the fact ``areas``, filled stage by stage.

    `DifferenceAreas` writes the first group of keys, `RegionCaptions` the second, `DifferenceCaptions` the last.
    """

    box: list[float]
    """x1 y1 x2 y2 in pixels, the same in both images."""
    confidence: float
    """Confidence of the segmenter."""
    similarity: float
    """Cosine of the crops of both images."""
    match: list[float | None]
    """Score of each crop with the name of its object; None where an image has no name."""
    dropped: dict[str, Any] | None
    """Reason, value and limit of the filter that rejected the region; None for a region that passed so far."""

    captions: list[str]
    """Caption of the region in each image."""
    caption_match: list[float]
    """Score of each crop with its caption."""
    caption_similarity: float
    """Cosine of the two captions."""

    difference: str
    """Sentence about the difference."""


def reject(area: Area, reason: str, value: float | str, limit: str) -> None:
    """Reject a region; it stays in the record, for the audit page."""
    area["dropped"] = {"reason": reason, "value": value, "limit": limit}


def accepted(areas: Sequence[Area]) -> list[Area]:
    """Regions that no filter has rejected."""
    return [area for area in areas if area["dropped"] is None]


def filter_pair(record: Record, similarity: float, filters: Filters) -> None:
    """Image Similarity Filter: drop a pair of too similar or too different images."""
    low, high = filters.pair_similarity
    if not low < similarity < high:
        reason = "pair too different" if similarity <= low else "pair too similar"
        record.drop(reason, round(similarity, 4), f"{low:g} to {high:g}")


def filter_shapes(areas: Sequence[Area], size: Sequence[int], filters: Filters) -> None:
    """Reject regions by confidence and by their fraction of an image of ``size`` (height, width)."""
    low, high = filters.area
    for area in accepted(areas):
        x1, y1, x2, y2 = area["box"]
        fraction = (x2 - x1) * (y2 - y1) / (size[0] * size[1])
        if area["confidence"] <= filters.confidence:
            reject(area, "confidence", area["confidence"], f"above {filters.confidence:g}")
        elif not low <= fraction <= high:
            reject(area, "box size", round(fraction, 4), f"{low:g} to {high:g} of the image")


def filter_differences(areas: Sequence[Area], filters: Filters) -> None:
    """Reject regions whose two crops are similar."""
    for area in accepted(areas):
        if area["similarity"] >= filters.crop_similarity:
            reject(area, "crops too similar", area["similarity"], f"below {filters.crop_similarity:g}")


def filter_names(areas: Sequence[Area], filters: Filters) -> None:
    """Image-text matching of boxes (BITM): reject regions that do not show the named object."""
    for area in accepted(areas):
        scores = [score for score in area.get("match") or () if score is not None]
        if not scores:
            continue  # this record has no names
        # a removed or added object has a name in one image only
        value = max(scores) if filters.sides_to_match == "one" else min(scores)
        if value <= filters.region_match:
            reject(area, "no such object", value, f"above {filters.region_match:g}")


def suppress_overlap(areas: Sequence[Area], filters: Filters) -> None:
    """Non-maximum suppression: reject regions that overlap an accepted one, and those above the maximum number.

    Args:
        areas: regions with ``similarity``; rejected ones are marked.
        filters: maximum overlap, order and maximum number.
    """
    ordered = sorted(areas, key=lambda area: area["similarity"]) if filters.keep == "most different" else list(areas)
    kept: list[Area] = []
    for area in ordered:
        overlap = max((box_iou(area["box"], other["box"]) for other in kept), default=0.0)
        if overlap > filters.overlap:
            reject(area, "overlap", round(overlap, 4), f"at most {filters.overlap:g}")
        elif filters.max_regions is not None and len(kept) == filters.max_regions:
            reject(area, "too many areas", len(areas), f"at most {filters.max_regions}")
        else:
            kept.append(area)


def filter_described(areas: Sequence[Area], filters: Filters) -> list[Area]:
    """Reject regions above the maximum number to caption; returns the others, the most different first."""
    limit = filters.described_regions
    ordered = sorted(accepted(areas), key=lambda area: area["similarity"])
    for area in ordered[limit:] if limit is not None else []:
        reject(area, "too many areas to caption", area["similarity"], f"the {limit} most different")
    return ordered[:limit]


def filter_captions(areas: Sequence[Area], filters: Filters) -> None:
    """Image-text matching (CITM) and similarity (CS) of captions.

    Rejects regions whose captions are empty, do not match their crops, or are similar.
    """
    for area in accepted(areas):
        match, similarity = min(area["caption_match"]), area["caption_similarity"]
        if not all(area["captions"]):
            reject(area, "empty caption", "", "one word or more")
        elif match <= filters.caption_match:
            reject(area, "caption does not match", match, f"above {filters.caption_match:g}")
        elif similarity >= filters.caption_similarity:
            reject(area, "captions too similar", similarity, f"below {filters.caption_similarity:g}")


def filter_answers(areas: Sequence[Area]) -> None:
    """Reject regions with an empty description of their difference."""
    for area in accepted(areas):
        if area.get("difference") == "":
            reject(area, "empty answer", "", "one word or more")


def drop_without_areas(record: Record, reason: str) -> None:
    """Drop a record without an accepted region."""
    if not accepted(record.facts["areas"]):
        record.drop(reason, 0, f"1 or more of {len(record.facts['areas'])}")


def summarise(record: Record) -> None:
    """Write the fact ``summary``: the differences of all accepted regions."""
    record.facts["summary"] = ". ".join(area["difference"].rstrip(".") for area in accepted(record.facts["areas"]))


class Refilter(PipelineStage):
    """Applies the thresholds of a preset to a store whose stages ran with ``filters: scores``, without a model.

    The result equals a run of the stages with the preset, so that Table 17 needs a single run.

    Args:
        filters: name of a preset of `presets`.
        seed: random seed, as in `PipelineStage`.

    Raises:
        ConfigError: the preset is unknown, scores are missing, or captions were matched with other crops or another
            type of score.
    """

    def __init__(self, filters: str = "paper", seed: int = 0) -> None:
        super().__init__(seed)
        self.filters = load_filters(filters)

    def settings(self) -> dict[str, Any]:
        return {"filters": self.filters.plain()}

    def process(self, records: list[Record]) -> list[Record]:
        for record in records:
            self._check(record)
            self._filter(record)
        return records

    def _filter(self, record: Record) -> None:
        areas, filters = record.facts["areas"], self.filters
        scores = {name: value for step in record.history for name, value in step.get("scores", {}).items()}
        if "pair_similarity" in scores:
            filter_pair(record, scores["pair_similarity"], filters)
        if record.dropped is None:
            for area in areas:
                area["dropped"] = None
            filter_shapes(areas, record.facts["size"], filters)
            filter_differences(areas, filters)
            filter_names(areas, filters)
            # overlap is suppressed before captions are filtered, as in the stages
            suppress_overlap(accepted(areas), filters)
            drop_without_areas(record, "no area left")
        if record.dropped is None:
            filter_described(areas, filters)
            filter_captions(areas, filters)
            filter_answers(areas)
            drop_without_areas(record, "no area described")
        if record.dropped is None and "summary" in record.facts:
            summarise(record)

    def _check(self, record: Record) -> None:
        steps = {step["stage"]: step for step in record.history}
        # pairs from other sources have no PairSimilarity; pairs that it dropped cannot be restored
        pairs = steps.get("PairSimilarity")
        if pairs is not None and tuple(pairs["pair_similarity"]) != SCORES.pair_similarity:
            raise ConfigError(
                f"the pairs of record {record.id} were filtered by PairSimilarity already; make the records with "
                "`filters: scores`, which rejects nothing"
            )
        for name in ("DifferenceAreas", "RegionCaptions"):
            if name not in steps:
                raise ConfigError(f"record {record.id} was not scored by {name}; refilter the store of the last stage")
            stored = {**steps[name]["filters"], "match_margin": 0}
            if stored != {**SCORES.plain(), "match_margin": 0}:
                raise ConfigError(
                    f"the regions of record {record.id} were filtered by {name} already; make the records with "
                    "`filters: scores`, which rejects nothing"
                )
        margin = steps["RegionCaptions"]["filters"]["match_margin"]
        if margin != self.filters.match_margin:
            raise ConfigError(
                f"captions were matched with {margin} pixels around each box; expected "
                f"{self.filters.match_margin} (match_margin); choose another preset, or match again"
            )
        score_type = (steps["RegionCaptions"].get("matcher") or {}).get("score")
        if None not in (score_type, self.filters.match_score) and score_type != self.filters.match_score:
            raise ConfigError(
                f"captions were matched by a {score_type}, this preset is for a {self.filters.match_score}; "
                "choose another preset, or match again"
            )
