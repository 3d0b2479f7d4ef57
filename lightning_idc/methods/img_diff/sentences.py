"""Difference Captions Generator (DCG): captions of each box in both images, and a sentence about their difference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightning_idc.methods.img_diff.filtering import (
    Area,
    accepted,
    drop_without_areas,
    filter_answers,
    filter_captions,
    filter_described,
    summarise,
)
from lightning_idc.methods.img_diff.presets import check_matcher, load_filters
from lightning_idc.synthesis.drawing import draw_box
from lightning_idc.synthesis.models.base import (
    DifferenceTeller,
    ImageCaptioner,
    ImageTextMatcher,
    TextEncoder,
    crop,
)
from lightning_idc.synthesis.models.embedded import ColorMatcher, TemplateTeller, WordEncoder
from lightning_idc.synthesis.models.prototypes import NearestPrototype
from lightning_idc.synthesis.records import Record
from lightning_idc.synthesis.stages import PipelineStage

SIDES = ("before", "after")


class RegionCaptions(PipelineStage):
    """Step 1: captions each accepted region in both images; rejects regions with wrong or similar captions.

    Captions are matched with the crops of the regions, which the scripts enlarge by five pixels (``match_margin``).

    Args:
        captioner: captioner of regions, from their crops or from whole images and boxes.
        matcher: image-text matcher of crops and captions.
        encoder: text encoder of captions.
        filters: name of a preset of `presets`.
        seed: random seed, as in `PipelineStage`.
    """

    reads = SIDES

    def __init__(
        self,
        captioner: ImageCaptioner | None = None,
        matcher: ImageTextMatcher | None = None,
        encoder: TextEncoder | None = None,
        filters: str = "paper",
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        self.captioner = captioner or NearestPrototype()
        self.matcher = matcher or ColorMatcher()
        self.encoder = encoder or WordEncoder()
        self.filters = check_matcher(load_filters(filters), self.matcher)

    def settings(self) -> dict[str, Any]:
        return {**self.model_settings(), "filters": self.filters.plain()}

    def process(self, records: list[Record]) -> list[Record]:
        for record in records:
            self.drop_unsupported(record, self.captioner)
        valid = [record for record in records if record.dropped is None]
        regions = [(record, area) for record in valid for area in filter_described(record.facts["areas"], self.filters)]
        if regions:
            self._caption(regions)
        for record in valid:
            filter_captions(record.facts["areas"], self.filters)
            drop_without_areas(record, "no area described")
        return records

    def _caption(self, regions: list[tuple[Record, Area]]) -> None:
        images = [record.pair()[side] for side in (0, 1) for record, _ in regions]
        boxes = [area["box"] for _ in (0, 1) for _, area in regions]
        captions = [" ".join(text.split()) for text in self.captioner.caption_regions(images, boxes)]
        margin = self.filters.match_margin
        crops = [crop(image, enlarged(box, margin)) for image, box in zip(images, boxes, strict=True)]
        scores = self.matcher.match(crops, captions).tolist()
        vectors = self.encoder.encode(captions)
        similarities = (vectors[: len(regions)] * vectors[len(regions) :]).sum(1).tolist()
        for index, (_, area) in enumerate(regions):
            both = index, index + len(regions)  # before and after
            area["captions"] = [captions[i] for i in both]
            area["caption_match"] = [round(scores[i], 4) for i in both]
            area["caption_similarity"] = round(similarities[index], 4)


class DifferenceCaptions(PipelineStage):
    """Step 2: a sentence about the difference inside each region, from both images with a red box around it.

    Writes ``difference`` into each area, and the fact ``summary`` with all of these sentences.

    Args:
        teller: model that describes the difference inside the box.
        seed: random seed, as in `PipelineStage`.
    """

    reads = SIDES

    def __init__(self, teller: DifferenceTeller | None = None, seed: int = 0) -> None:
        super().__init__(seed)
        self.teller = teller or TemplateTeller()

    def settings(self) -> dict[str, Any]:
        return {"teller": self.teller.settings()}

    def process(self, records: list[Record]) -> list[Record]:
        regions = [(record, area) for record in records for area in accepted(record.facts["areas"])]
        before, after = ([draw_box(record.pair()[side], area["box"]) for record, area in regions] for side in (0, 1))
        texts = self.teller.tell(before, after, [(area["captions"][0], area["captions"][1]) for _, area in regions])
        for (_, area), text in zip(regions, texts, strict=True):
            area["difference"] = " ".join(text.split())
        for record in records:
            filter_answers(record.facts["areas"])
            summarise(record)
            drop_without_areas(record, "no area described")
        return records


def enlarged(box: Sequence[float], margin: float) -> list[float]:
    """Box x1 y1 x2 y2 enlarged by a margin in pixels."""
    return [box[0] - margin, box[1] - margin, box[2] + margin, box[3] + margin]
