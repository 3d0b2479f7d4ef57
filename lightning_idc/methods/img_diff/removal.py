"""Object removal (section 19): an object is erased from a picture, and the question is in which picture it is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from lightning_idc.images.resize import resize
from lightning_idc.methods.img_diff.areas import cosines
from lightning_idc.methods.img_diff.filtering import kept, reject, suppress_overlap
from lightning_idc.methods.img_diff.presets import PRESETS
from lightning_idc.methods.img_diff.prompts import REMOVAL_QUESTION, box_in_shares
from lightning_idc.synthesis.drawing import draw_box
from lightning_idc.synthesis.models.base import (
    ImageCaptioner,
    ImageEncoder,
    ImageTextMatcher,
    Inpainter,
    Region,
    Segmenter,
    crop,
)
from lightning_idc.synthesis.models.contours import DifferenceContours, TeleaInpainter
from lightning_idc.synthesis.models.embedded import ColorMatcher, PixelEncoder
from lightning_idc.synthesis.models.prototypes import NearestPrototype
from lightning_idc.synthesis.records import Record, encode_image, record_seed
from lightning_idc.synthesis.release import file_name
from lightning_idc.synthesis.stages import PipelineStage
from lightning_idc.synthesis.store import RecordStore
from lightning_idc.utils.files import fill
from lightning_idc.utils.outputs import Output

REMOVAL, PICTURES = "img_diff_object_removal.json", "object_removal/inpaint"
SIDES = ("before", "after")
MARGIN = 15
"""Pixels between the box of an object and its red frame; 5 in the replacement data."""


class EraseObjects(PipelineStage):
    """Makes an exist-absent pair of each object in either picture of a replacement pair.

    Regions whose crops are alike in both pictures of the pair hold no object (section 19.2.2); of the others, those
    found in a picture are erased from that picture, with that picture's own masks. Each pair becomes several records,
    one per erased object, with the pictures ``with`` and ``without``, one entry in the fact ``areas``, the fact
    ``erased_from``, and the pair's name as ``file`` where it was not made of one.

    Args:
        segmenter: finds regions and their masks.
        encoder: of crops.
        inpainter: erases; the paper's is SDXL-turbo with the prompt "background, nothing, 8k".
        alike: cosine of the crops of both pictures from which on a region holds no object.
        confidence: of a region, more than this.
        overlap: IoU from which on only the most different of two regions of one picture is kept.
        max_objects: erased from one picture, the most different first.
        size: height and width that both pictures are resized to; None to leave them as they are.
        seed: see `PipelineStage`.
    """

    reads = SIDES

    def __init__(
        self,
        segmenter: Segmenter | None = None,
        encoder: ImageEncoder | None = None,
        inpainter: Inpainter | None = None,
        alike: float = 0.9,
        confidence: float = 0.1,
        overlap: float = 0.5,
        max_objects: int = 3,
        size: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        self.segmenter = segmenter or DifferenceContours()
        self.encoder = encoder or PixelEncoder()
        self.inpainter = inpainter or TeleaInpainter()
        self.alike, self.confidence, self.overlap = alike, confidence, overlap
        self.max_objects, self.size = max_objects, size

    def settings(self) -> dict[str, Any]:
        own = {"alike": self.alike, "confidence": self.confidence, "overlap": self.overlap}
        return {**self.model_settings(), **own, "max_objects": self.max_objects, "size": self.size}

    def process(self, records: list[Record]) -> list[list[Record]]:
        pairs = [self._resized(record) for record in records]
        found = self.segmenter.regions([pair[0] for pair in pairs], [pair[1] for pair in pairs], masks=True)
        made: list[list[Record]] = [[] for _ in records]
        masks: list[Tensor] = []
        for record, pair, regions, own in zip(records, pairs, found, made, strict=True):
            for side, picture in enumerate(pair):
                for region, similarity in self._objects(pair, regions, side):
                    child = record.child(str(len(own)))
                    child.facts["size"] = list(picture.shape[1:])
                    child.facts["areas"] = [{"box": list(region.box), "similarity": similarity, "dropped": None}]
                    child.facts["erased_from"] = SIDES[side]
                    child.facts.setdefault("file", record.id)  # what is made of one pair stays in one split
                    child.put("with", picture)
                    own.append(child)
                    assert region.mask is not None  # they were asked for
                    masks.append(region.mask)
        children = [child for own in made for child in own]
        seeds = [int(record_seed(self.seed, child.id).integers(2**31)) for child in children]
        pictures = self.inpainter.fill([child.image("with") for child in children], masks, seeds) if children else []
        for child, picture in zip(children, pictures, strict=True):
            child.put("without", picture)
        for record, own in zip(records, made, strict=True):
            if not own:
                record.drop("no object", None, f"a region with crops below {self.alike:g}")
                own.append(record)
        return made

    def _resized(self, record: Record) -> tuple[Tensor, Tensor]:
        before, after = record.pair()
        if self.size is None:
            return before, after
        return resize(before, (self.size, self.size)), resize(after, (self.size, self.size))

    def _objects(self, pair: Sequence[Tensor], regions: Sequence[Region], side: int) -> list[tuple[Region, float]]:
        """What is erased from one picture of a pair, the most different first, with the cosine of its crops."""
        own = [r for r in regions if r.picture in (side, None) and r.confidence > self.confidence]
        if not own:
            return []
        crops = [[crop(image, region.box) for region in own] for image in pair]
        areas = [
            {"box": list(region.box), "similarity": round(value, 4), "dropped": None, "region": region}
            for region, value in zip(own, cosines(self.encoder, *crops).tolist(), strict=True)
            if value < self.alike
        ]
        suppress_overlap(areas, replace(PRESETS["paper"], overlap=self.overlap, most_regions=self.max_objects))
        chosen = sorted(kept(areas), key=lambda area: area["similarity"])
        return [(area["region"], area["similarity"]) for area in chosen]


class RemovedObjects(PipelineStage):
    """Describes what was erased and checks that the description fits the one picture and not the other.

    Args:
        captioner: of the region with the object; section 19.2.4 asks about the whole picture, with the box.
        matcher: of crops and descriptions.
        present: least score where the object is.
        absent: greatest score where it is not.
        seed: see `PipelineStage`.
    """

    reads = ("with", "without")

    def __init__(
        self,
        captioner: ImageCaptioner | None = None,
        matcher: ImageTextMatcher | None = None,
        present: float = 0.35,
        absent: float = 0.2,
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        self.captioner = captioner or NearestPrototype()
        self.matcher = matcher or ColorMatcher()
        self.present, self.absent = present, absent

    def settings(self) -> dict[str, Any]:
        return {**self.model_settings(), "present": self.present, "absent": self.absent}

    def process(self, records: list[Record]) -> list[Record]:
        for record in records:
            self.refuse(record, self.captioner)
        self._describe([record for record in records if record.dropped is None])
        return records

    def _describe(self, records: list[Record]) -> None:
        if not records:
            return
        boxes = [record.facts["areas"][0]["box"] for record in records]
        crops = [
            crop(record.image(side), box) for side in self.reads for record, box in zip(records, boxes, strict=True)
        ]
        found = self.captioner.caption_regions([record.image("with") for record in records], boxes)
        texts = [" ".join(text.split()) for text in found]
        scores = self.matcher.match(crops, [*texts, *texts]).tolist()
        for number, (record, text) in enumerate(zip(records, texts, strict=True)):
            area = record.facts["areas"][0]
            inside, outside = scores[number], scores[number + len(records)]
            area["captions"], area["match"] = [text], [round(inside, 4), round(outside, 4)]
            record.score(present=inside, absent=outside)
            if not text:
                reject(area, "empty caption", "", "some words")
            elif inside < self.present:
                reject(area, "object not recognised", round(inside, 4), f"{self.present:g} or more")
            elif outside > self.absent:
                reject(area, "object still there", round(outside, 4), f"{self.absent:g} or less")
            if area["dropped"] is not None:
                record.drop(area["dropped"]["reason"], area["dropped"]["value"], area["dropped"]["limit"])
            else:
                ask(record, record_seed(self.seed, record.id).random() < 0.5)


def ask(record: Record, object_left: bool) -> None:
    """Turn an exist-absent pair into left and right picture with a question and its letter.

    Args:
        record: with the pictures ``with`` and ``without`` and a described area.
        object_left: whether the picture with the object comes first.
    """
    area = record.facts["areas"][0]
    sides = ("with", "without") if object_left else ("without", "with")
    for name, side in zip(("before", "after"), sides, strict=True):
        # the same file twice, not a copy that is encoded anew
        record.images[name], record.decoded[name] = record.encoded(side), record.image(side)
    record.facts["edit"] = "remove" if object_left else "add"
    record.facts["question"] = REMOVAL_QUESTION.format(caption=area["captions"][0])
    record.facts["answer"] = "A" if object_left else "B"


class ReleaseRemoval(PipelineStage):
    """Writes the kept questions as ``img_diff_object_removal.json``, with red boxes drawn on both pictures.

    Args:
        folder: that is written; files of an earlier release are replaced.
        seed: see `PipelineStage`.
        overwrite: whether files of others in the folder may be replaced.
    """

    def __init__(self, folder: str, seed: int = 0, overwrite: bool = False) -> None:
        super().__init__(seed)
        self.folder, self.overwrite = Path(folder).expanduser(), overwrite

    def process(self, records: list[Record]) -> list[Record]:
        return records

    def finish(self, store: RecordStore) -> None:
        with Output(self.folder, "release of removals", self.overwrite, [store.folder]) as draft:
            self._write(store, draft)

    def _write(self, store: RecordStore, folder: Path) -> None:
        (folder / PICTURES).mkdir(parents=True)
        released = []
        for record in store:
            for area in kept(record.facts.get("areas") or []) if record.dropped is None else []:
                pair, _, number = record.id.rpartition("/")
                path = f"inpaint/{file_name(pair)}_{number}"
                for side, image in enumerate(record.pair()):
                    boxed = draw_box(image, area["box"], MARGIN)
                    fill(folder / "object_removal" / f"{path}_{side}.jpg", encode_image(boxed, "jpeg"))
                released.append(
                    {
                        "bbox": [float(value) for value in box_in_shares(area["box"], record.facts["size"])],
                        "conversations": [
                            {"from": "human", "value": record.facts["question"]},
                            {"from": "gpt", "value": record.facts["answer"]},
                        ],
                        "path": f"./{path}",
                    }
                )
        fill(folder / REMOVAL, json.dumps(released, ensure_ascii=False, indent=1))
        print(f"{len(released)} questions: {self.folder / REMOVAL}", flush=True)
