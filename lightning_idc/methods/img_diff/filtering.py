"""Filters of Img-Diff as functions of scores that a record holds, so that thresholds can be changed without a model.

The stages measure and then call these functions. A run with the preset ``scores`` measures everything and leaves
nothing out; `Refilter` then applies any other preset to what was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightning_idc.data.synthetic.geometry import box_iou
from lightning_idc.methods.img_diff.presets import SCORES, Filters, filters_named
from lightning_idc.synthesis.records import Record
from lightning_idc.synthesis.stages import PipelineStage
from lightning_idc.utils.errors import ConfigError

Area = dict[str, Any]


def reject(area: Area, reason: str, value: float | str, limit: str) -> None:
    """Leave a region out; it stays in the record, for the audit page."""
    area["dropped"] = {"reason": reason, "value": value, "limit": limit}


def kept(areas: Sequence[Area]) -> list[Area]:
    """Regions that no filter has left out."""
    return [area for area in areas if area["dropped"] is None]


def filter_pair(record: Record, similarity: float, filters: Filters) -> None:
    """Image Similarity Filter: drop a pair that is nearly the same, or hardly alike."""
    low, high = filters.pair_similarity
    if not low < similarity < high:
        reason = "pair too different" if similarity <= low else "pair too similar"
        record.drop(reason, round(similarity, 4), f"{low:g} to {high:g}")


def filter_shapes(areas: Sequence[Area], size: Sequence[int], filters: Filters) -> None:
    """Leave out regions by confidence and by their share of a picture of ``size`` (height, width)."""
    low, high = filters.area
    for area in kept(areas):
        x1, y1, x2, y2 = area["box"]
        share = (x2 - x1) * (y2 - y1) / (size[0] * size[1])
        if area["confidence"] <= filters.confidence:
            reject(area, "confidence", area["confidence"], f"above {filters.confidence:g}")
        elif not low <= share <= high:
            reject(area, "box size", round(share, 4), f"{low:g} to {high:g} of the picture")


def filter_differences(areas: Sequence[Area], filters: Filters) -> None:
    """Leave out regions whose two crops are alike."""
    for area in kept(areas):
        if area["similarity"] >= filters.crop_similarity:
            reject(area, "crops too similar", area["similarity"], f"below {filters.crop_similarity:g}")


def filter_names(areas: Sequence[Area], filters: Filters) -> None:
    """BITM: leave out regions that do not show the named object."""
    for area in kept(areas):
        known = [score for score in area.get("match") or () if score is not None]
        if not known:
            continue  # nothing is named in this record
        # where one side is empty by design, there is one name only
        value = max(known) if filters.sides_to_match == "one" else min(known)
        if value <= filters.region_match:
            reject(area, "no such object", value, f"above {filters.region_match:g}")


def suppress_overlap(areas: Sequence[Area], filters: Filters) -> None:
    """Leave out regions that overlap one that is kept, and those beyond the greatest number.

    Args:
        areas: with ``similarity``; those that are left out are marked.
        filters: overlap, which one is kept, and how many.
    """
    order = sorted(areas, key=lambda area: area["similarity"]) if filters.keep == "most different" else list(areas)
    chosen: list[Area] = []
    for area in order:
        over = max((box_iou(area["box"], other["box"]) for other in chosen), default=0.0)
        if over > filters.overlap:
            reject(area, "overlap", round(over, 4), f"at most {filters.overlap:g}")
        elif filters.most_regions is not None and len(chosen) == filters.most_regions:
            reject(area, "too many areas", len(areas), f"at most {filters.most_regions}")
        else:
            chosen.append(area)


def filter_described(areas: Sequence[Area], filters: Filters) -> list[Area]:
    """Leave out regions beyond those that are captioned; those that stay, the most different first."""
    most = filters.described_regions
    order = sorted(kept(areas), key=lambda area: area["similarity"])
    for area in order[most:] if most is not None else []:
        reject(area, "beyond those described", area["similarity"], f"the {most} most different")
    return order[:most]


def filter_captions(areas: Sequence[Area], filters: Filters) -> None:
    """CITM and CS: leave out regions whose captions are empty, do not match their crops, or say the same."""
    for area in kept(areas):
        match, alike = min(area["caption_match"]), area["caption_similarity"]
        if not all(area["captions"]):
            reject(area, "empty caption", "", "some words")
        elif match <= filters.caption_match:
            reject(area, "caption does not match", match, f"above {filters.caption_match:g}")
        elif alike >= filters.caption_similarity:
            reject(area, "captions too similar", alike, f"below {filters.caption_similarity:g}")


def filter_answers(areas: Sequence[Area]) -> None:
    """Leave out regions of whose difference nothing is said, where it was asked for."""
    for area in kept(areas):
        if area.get("difference") == "":
            reject(area, "empty answer", "", "some words")


def drop_without_areas(record: Record, reason: str) -> None:
    """Drop a record of whose regions none is left."""
    if not kept(record.facts["areas"]):
        record.drop(reason, 0, f"1 or more of {len(record.facts['areas'])}")


def summarise(record: Record) -> None:
    """Write the fact ``summary``: the differences of all kept regions, one after another."""
    record.facts["summary"] = ". ".join(area["difference"].rstrip(".") for area in kept(record.facts["areas"]))


class Refilter(PipelineStage):
    """Applies the thresholds of a preset to a store whose stages ran with ``filters: scores``; no model is needed.

    The records are those that the stages would have kept, had they been given the preset: Table 17 is one run.

    Args:
        filters: name of a preset; see `presets`.
        seed: see `PipelineStage`.

    Raises:
        ConfigError: there is no such preset, or the records were not scored in full, or with other crops.
    """

    def __init__(self, filters: str = "paper", seed: int = 0) -> None:
        super().__init__(seed)
        self.filters = filters_named(filters)

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
                area["dropped"] = None  # one without words hides what it overlaps: words are asked for last
            filter_shapes(areas, record.facts["size"], filters)
            filter_differences(areas, filters)
            filter_names(areas, filters)
            suppress_overlap(kept(areas), filters)
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
        # pairs may come from elsewhere; those that this stage has left out do not come back under a wider window
        pairs = steps.get("PairSimilarity")
        if pairs is not None and tuple(pairs["pair_similarity"]) != SCORES.pair_similarity:
            raise ConfigError(
                f"the pairs beside record {record.id} were filtered by PairSimilarity already; make the records with "
                "`filters: scores`, which measures all and leaves out nothing"
            )
        for name in ("DifferenceAreas", "RegionCaptions"):
            if name not in steps:
                raise ConfigError(f"record {record.id} was not scored by {name}; refilter the store of the last stage")
            found = {**steps[name]["filters"], "match_margin": 0}
            if found != {**SCORES.plain(), "match_margin": 0}:
                raise ConfigError(
                    f"the regions of record {record.id} were filtered by {name} already; make the records with "
                    "`filters: scores`, which measures all and leaves out nothing"
                )
        margin = steps["RegionCaptions"]["filters"]["match_margin"]
        if margin != self.filters.match_margin:
            raise ConfigError(
                f"captions were matched with {margin} pixels around each box, this preset asks for "
                f"{self.filters.match_margin} (match_margin); choose another preset, or match again"
            )
        kind = (steps["RegionCaptions"].get("matcher") or {}).get("score")
        if None not in (kind, self.filters.match_score) and kind != self.filters.match_score:
            raise ConfigError(
                f"captions were matched by a {kind}, this preset is for a {self.filters.match_score}; "
                "choose another preset, or match again"
            )
