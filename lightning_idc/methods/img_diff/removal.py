"""Object removal (section 19): exist-absent pairs, and questions about which image contains an object.

1. `EraseObjects` segments both images of a replacement pair, selects regions that differ, and inpaints each of them,
2. `RemovedObjects` captions the erased object, checks that the caption matches only the image with it, and adds the
   question (`add_question`),
3. `ReleaseRemoval` writes images and questions in the authors' layout.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from lightning_idc.images.resize import resize
from lightning_idc.methods.img_diff.areas import cosines
from lightning_idc.methods.img_diff.filtering import accepted, reject, suppress_overlap
from lightning_idc.methods.img_diff.presets import PRESETS
from lightning_idc.methods.img_diff.prompts import REMOVAL_QUESTION, box_in_fractions
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
from lightning_idc.synthesis.records import Record, encode_image, record_generator
from lightning_idc.synthesis.release import file_name
from lightning_idc.synthesis.stages import PipelineStage
from lightning_idc.synthesis.store import RecordStore
from lightning_idc.utils.bounds import PositiveInt, check_arguments
from lightning_idc.utils.files import write_content
from lightning_idc.utils.outputs import Output

REMOVAL, IMAGE_FOLDER = "img_diff_object_removal.json", "object_removal/inpaint"
SIDES = ("before", "after")
MARGIN = 15
"""Pixels between the box of an object and its red frame; 5 in the replacement data."""


class EraseObjects(PipelineStage):
    """Makes an exist-absent pair of each object in each image of a replacement pair.

    A region whose crops are similar contains no replaced object (section 19.2.2). All other regions are erased from
    their image with its masks. Each pair becomes one record per erased object, with the images ``with`` and
    ``without``, one entry in the fact ``areas``, and the facts ``erased_from`` and ``file`` (by default the pair's id).

    Args:
        segmenter: segmenter of regions and masks.
        encoder: image encoder of crops.
        inpainter: inpainting model; SDXL-turbo with the prompt "background, nothing, 8k" in the paper.
        max_similarity: maximum cosine of a region's two crops, excluded.
        confidence: minimum confidence of a region, excluded.
        overlap: maximum IoU of two accepted regions of one image; the more different one is accepted.
        max_objects: maximum number of objects erased from one image, the most different first.
        size: height and width to which both images are resized; None for no resizing.
        seed: random seed, as in `PipelineStage`.
    """

    reads = SIDES

    def __init__(
        self,
        segmenter: Segmenter | None = None,
        encoder: ImageEncoder | None = None,
        inpainter: Inpainter | None = None,
        max_similarity: float = 0.9,
        confidence: float = 0.1,
        overlap: float = 0.5,
        max_objects: PositiveInt = 3,
        size: PositiveInt | None = None,
        seed: int = 0,
    ) -> None:
        check_arguments(EraseObjects.__init__, locals())
        super().__init__(seed)
        self.segmenter = segmenter or DifferenceContours()
        self.encoder = encoder or PixelEncoder()
        self.inpainter = inpainter or TeleaInpainter()
        self.max_similarity, self.confidence, self.overlap = max_similarity, confidence, overlap
        self.max_objects, self.size = max_objects, size

    def settings(self) -> dict[str, Any]:
        names = ("max_similarity", "confidence", "overlap", "max_objects", "size")
        return {**self.model_settings(), **{name: getattr(self, name) for name in names}}

    def process(self, records: list[Record]) -> list[list[Record]]:
        pairs = [self._resized_pair(record) for record in records]
        regions_of_pairs = self.segmenter.regions([pair[0] for pair in pairs], [pair[1] for pair in pairs], masks=True)
        results: list[list[Record]] = [[] for _ in records]
        masks: list[Tensor] = []
        for record, pair, regions, pair_children in zip(records, pairs, regions_of_pairs, results, strict=True):
            for side, image in enumerate(pair):
                for region, similarity in self._select_objects(pair, regions, side):
                    child = record.child(str(len(pair_children)))
                    child.facts["size"] = list(image.shape[1:])
                    child.facts["areas"] = [{"box": list(region.box), "similarity": similarity, "dropped": None}]
                    child.facts["erased_from"] = SIDES[side]
                    child.facts.setdefault("file", record.id)  # all records of one pair stay in one split
                    child.put("with", image)
                    pair_children.append(child)
                    assert region.mask is not None  # requested above
                    masks.append(region.mask)
        children = [child for pair_children in results for child in pair_children]
        seeds = [int(record_generator(self.seed, child.id).integers(2**31)) for child in children]
        inpainted = self.inpainter.fill([child.image("with") for child in children], masks, seeds) if children else []
        for child, image in zip(children, inpainted, strict=True):
            child.put("without", image)
        for record, pair_children in zip(records, results, strict=True):
            if not pair_children:
                record.drop("no object", None, f"a region with similarity below {self.max_similarity:g}")
                pair_children.append(record)
        return results

    def _resized_pair(self, record: Record) -> tuple[Tensor, Tensor]:
        before, after = record.pair()
        if self.size is None:
            return before, after
        return resize(before, (self.size, self.size)), resize(after, (self.size, self.size))

    def _select_objects(
        self, pair: Sequence[Tensor], regions: Sequence[Region], side: int
    ) -> list[tuple[Region, float]]:
        """Regions to erase from one image of a pair, the most different first, with the cosine of their crops."""
        candidates = [r for r in regions if r.image_index in (side, None) and r.confidence > self.confidence]
        if not candidates:
            return []
        crops = [[crop(image, region.box) for region in candidates] for image in pair]
        areas: list[Any] = [
            {"box": list(region.box), "similarity": round(value, 4), "dropped": None, "region": region}
            for region, value in zip(candidates, cosines(self.encoder, *crops).tolist(), strict=True)
            if value < self.max_similarity
        ]
        suppress_overlap(areas, replace(PRESETS["paper"], overlap=self.overlap, max_regions=self.max_objects))
        selected: list[Any] = sorted(accepted(areas), key=lambda area: area["similarity"])
        return [(area["region"], area["similarity"]) for area in selected]


class RemovedObjects(PipelineStage):
    """Captions the erased object and checks that the caption matches only the image that contains it.

    Args:
        captioner: captioner of the region; in section 19.2.4 it reads the whole image and the box.
        matcher: image-text matcher of crops and captions.
        present: minimum score of the image with the object.
        absent: maximum score of the image without it.
        seed: random seed, as in `PipelineStage`.
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
            self.drop_unsupported(record, self.captioner)
        self._describe([record for record in records if record.dropped is None])
        return records

    def _describe(self, records: list[Record]) -> None:
        if not records:
            return
        boxes = [record.facts["areas"][0]["box"] for record in records]
        crops = [
            crop(record.image(side), box) for side in self.reads for record, box in zip(records, boxes, strict=True)
        ]
        captions = self.captioner.caption_regions([record.image("with") for record in records], boxes)
        texts = [" ".join(text.split()) for text in captions]
        scores = self.matcher.match(crops, [*texts, *texts]).tolist()
        for index, (record, text) in enumerate(zip(records, texts, strict=True)):
            area = record.facts["areas"][0]
            present, absent = scores[index], scores[index + len(records)]
            area["captions"], area["match"] = [text], [round(present, 4), round(absent, 4)]
            record.score(present=present, absent=absent)
            if not text:
                reject(area, "empty caption", "", "one word or more")
            elif present < self.present:
                reject(area, "caption does not match", round(present, 4), f"{self.present:g} or more")
            elif absent > self.absent:
                reject(area, "object not erased", round(absent, 4), f"{self.absent:g} or less")
            if area["dropped"] is not None:
                record.drop(area["dropped"]["reason"], area["dropped"]["value"], area["dropped"]["limit"])
            else:
                add_question(record, record_generator(self.seed, record.id).random() < 0.5)


def add_question(record: Record, object_left: bool) -> None:
    """Make a left and a right image of an exist-absent pair, with a question and its answer.

    Args:
        record: record with the images ``with`` and ``without`` and a captioned area.
        object_left: whether the image with the object comes first.
    """
    area = record.facts["areas"][0]
    sides = ("with", "without") if object_left else ("without", "with")
    for name, side in zip(("before", "after"), sides, strict=True):
        # the same encoded file, without encoding it again
        record.images[name], record.decoded[name] = record.encoded(side), record.image(side)
    record.facts["edit"] = "remove" if object_left else "add"
    record.facts["question"] = REMOVAL_QUESTION.format(caption=area["captions"][0])
    record.facts["answer"] = "A" if object_left else "B"


class ReleaseRemoval(PipelineStage):
    """Writes the questions as ``img_diff_object_removal.json``, with red boxes drawn on both images.

    Args:
        folder: output folder; files of an earlier release are replaced.
        seed: random seed, as in `PipelineStage`.
        overwrite: whether other files in the folder may be replaced.
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
        (folder / IMAGE_FOLDER).mkdir(parents=True)
        released = []
        for record in store:
            for area in accepted(record.facts.get("areas") or []) if record.dropped is None else []:
                pair, _, number = record.id.rpartition("/")
                path = f"inpaint/{file_name(pair)}_{number}"
                for side, image in enumerate(record.pair()):
                    boxed = draw_box(image, area["box"], MARGIN)
                    write_content(folder / "object_removal" / f"{path}_{side}.jpg", encode_image(boxed, "jpeg"))
                released.append(
                    {
                        "bbox": [float(value) for value in box_in_fractions(area["box"], record.facts["size"])],
                        "conversations": [
                            {"from": "human", "value": record.facts["question"]},
                            {"from": "gpt", "value": record.facts["answer"]},
                        ],
                        "path": f"./{path}",
                    }
                )
        write_content(folder / REMOVAL, json.dumps(released, ensure_ascii=False, indent=1))
        print(f"{len(released)} questions: {self.folder / REMOVAL}", flush=True)
