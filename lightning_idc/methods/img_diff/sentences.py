"""Difference Captions Generator: what stands in each box of either picture, and how the two differ."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lightning_idc.methods.img_diff.areas import kept, reject
from lightning_idc.methods.img_diff.presets import filters_named
from lightning_idc.synthesis.records import Record
from lightning_idc.synthesis.slots.base import DifferenceTeller, ImageCaptioner, ImageTextMatcher, TextEncoder, crop
from lightning_idc.synthesis.slots.embedded import ColorMatcher, TemplateTeller, WordEncoder
from lightning_idc.synthesis.slots.prototypes import NearestPrototype
from lightning_idc.synthesis.stages import Stage

SIDES = ("before", "after")
BAR, LINE, MARGIN = 20, 3, 5
"""Black bar between the pictures (section 18.1), width of the red line, its distance to the box (scripts); pixels."""


class RegionCaptions(Stage):
    """Stage 1: captions of the crops of each kept region; regions with a wrong or with two similar captions go.

    Args:
        captioner: of crops.
        matcher: of crops and captions.
        encoder: of captions.
        filters: name of a preset; see `presets`.
        seed: see `Stage`.
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
        self.filters = filters_named(filters)

    def settings(self) -> dict[str, Any]:
        return {**self.slot_settings(), "filters": self.filters.plain()}

    def process(self, records: list[Record]) -> list[Record]:
        todo = [(record, area) for record in records for area in self._described(record)]
        if todo:
            self._caption(todo)
        for record in records:
            if not kept(record.facts["areas"]):
                record.drop("no area described", 0, f"1 or more of {len(record.facts['areas'])}")
        return records

    def _described(self, record: Record) -> list[dict[str, Any]]:
        most = self.filters.described_regions
        areas = sorted(kept(record.facts["areas"]), key=lambda area: area["similarity"])
        for area in areas[most:] if most is not None else []:
            reject(area, "beyond those described", area["similarity"], f"the {most} most different")
        return areas[:most]

    def _caption(self, todo: list[tuple[Record, dict[str, Any]]]) -> None:
        crops = [crop(record.image(side), area["box"]) for side in SIDES for record, area in todo]
        captions = [" ".join(text.split()) for text in self.captioner.caption(crops)]
        scores = self.matcher.match(crops, captions).tolist()
        vectors = self.encoder.encode(captions)
        alike = (vectors[: len(todo)] * vectors[len(todo) :]).sum(1).tolist()
        for number, (_, area) in enumerate(todo):
            both = number, number + len(todo)
            area["captions"] = [captions[i] for i in both]
            area["caption_match"] = [round(scores[i], 4) for i in both]
            area["caption_similarity"] = round(alike[number], 4)
            if not all(area["captions"]):
                reject(area, "empty caption", "", "some words")
            elif min(area["caption_match"]) <= self.filters.caption_match:
                reject(
                    area, "caption does not match", min(area["caption_match"]), f"above {self.filters.caption_match:g}"
                )
            elif area["caption_similarity"] >= self.filters.caption_similarity:
                limit = f"below {self.filters.caption_similarity:g}"
                reject(area, "captions too similar", area["caption_similarity"], limit)


class DifferenceCaptions(Stage):
    """Stage 2: a sentence about each region, from both pictures with a red box around it.

    Writes ``difference`` into each area and the fact ``summary`` with all of them.

    Args:
        teller: says how the pictures differ inside the box.
        seed: see `Stage`.
    """

    reads = SIDES

    def __init__(self, teller: DifferenceTeller | None = None, seed: int = 0) -> None:
        super().__init__(seed)
        self.teller = teller or TemplateTeller()

    def settings(self) -> dict[str, Any]:
        return {"teller": self.teller.settings()}

    def process(self, records: list[Record]) -> list[Record]:
        todo = [(record, area) for record in records for area in kept(record.facts["areas"])]
        boxed = [[draw_box(record.image(side), area["box"]) for record, area in todo] for side in SIDES]
        texts = self.teller.tell(boxed[0], boxed[1], [tuple(area["captions"]) for _, area in todo])
        for (_, area), text in zip(todo, texts, strict=True):
            area["difference"] = " ".join(text.split())
            if not area["difference"]:
                reject(area, "empty answer", "", "some words")
        for record in records:
            told = [area["difference"].rstrip(".") for area in kept(record.facts["areas"])]
            record.facts["summary"] = ". ".join(told)
            if not told:
                record.drop("no area described", 0, f"1 or more of {len(record.facts['areas'])}")
        return records


def draw_box(image: Tensor, box: list[float]) -> Tensor:
    """Copy of a picture with a red frame around a box, 3 pixels wide and 5 away from it, cut off at the border.

    Args:
        image: uint8 ``(3, H, W)``.
        box: x1 y1 x2 y2, pixels.
    """
    height, width = image.shape[1:]
    x1, y1 = max(int(box[0]) - MARGIN, 0), max(int(box[1]) - MARGIN, 0)
    x2, y2 = min(round(box[2]) + MARGIN, width), min(round(box[3]) + MARGIN, height)
    framed = image.clone()
    red = image.new_tensor([255, 0, 0])[:, None, None]
    framed[:, y1 : y1 + LINE, x1:x2] = red
    framed[:, max(y2 - LINE, 0) : y2, x1:x2] = red
    framed[:, y1:y2, x1 : x1 + LINE] = red
    framed[:, y1:y2, max(x2 - LINE, 0) : x2] = red
    return framed


def side_by_side(before: Tensor, after: Tensor) -> Tensor:
    """Both pictures in one, with a black bar of 20 pixels between them (section 18.1)."""
    return torch.cat([before, before.new_zeros(3, before.shape[1], BAR), after], 2)
