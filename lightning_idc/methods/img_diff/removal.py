"""Object removal (section 19): an object is erased from a picture, and the question is in which picture it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from lightning_idc.methods.img_diff.areas import cosines, kept, reject
from lightning_idc.methods.img_diff.release import normalised
from lightning_idc.methods.img_diff.sentences import draw_box
from lightning_idc.synthesis.records import Record, encode_png, record_seed
from lightning_idc.synthesis.release import file_name
from lightning_idc.synthesis.slots.base import (
    ImageCaptioner,
    ImageEncoder,
    ImageTextMatcher,
    Inpainter,
    Segmenter,
    crop,
)
from lightning_idc.synthesis.slots.contours import DifferenceContours, TeleaInpainter
from lightning_idc.synthesis.slots.embedded import ColorMatcher, PixelEncoder
from lightning_idc.synthesis.slots.prototypes import NearestPrototype
from lightning_idc.synthesis.stages import Stage
from lightning_idc.synthesis.store import RecordStore

QUESTION = (
    "Analyse the left image and the right image (separated by the black vertical bar). "
    'Which image has the object related to "{description}" within the red bounding box?\n'
    "A. the left image\nB. the right image\n"
    "Answer with the option's letter from the given choices directly."
)
"""Figure 10."""


class EraseObjects(Stage):
    """Makes an exist-absent pair of each object in the picture ``before`` of a replacement pair.

    Regions whose crops are alike in both pictures of the pair hold no object (section 19.2.2); in the others the object
    is erased. Each pair becomes several records, one per erased object, with the pictures ``with`` and ``without`` and
    one entry in the fact ``areas``.

    Args:
        segmenter: finds regions and their masks.
        encoder: of crops.
        inpainter: erases; the paper's is SDXL-turbo with the prompt "background, nothing, 8k".
        alike: cosine of the crops of both pictures from which on a region holds no object.
        confidence: of a region, at least.
        most: objects erased from one picture, the most different first.
        seed: see `Stage`.
    """

    reads = ("before", "after")

    def __init__(
        self,
        segmenter: Segmenter | None = None,
        encoder: ImageEncoder | None = None,
        inpainter: Inpainter | None = None,
        alike: float = 0.9,
        confidence: float = 0.05,
        most: int = 3,
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        self.segmenter = segmenter or DifferenceContours()
        self.encoder = encoder or PixelEncoder()
        self.inpainter = inpainter or TeleaInpainter()
        self.alike, self.confidence, self.most = alike, confidence, most

    def settings(self) -> dict[str, Any]:
        return {**self.slot_settings(), "alike": self.alike, "confidence": self.confidence, "most": self.most}

    def process(self, records: list[Record]) -> list[list[Record]]:
        found = self.segmenter.regions(*([record.image(side) for record in records] for side in self.reads))
        todo = [
            (number, region)
            for number, regions in enumerate(found)
            for region in regions
            if region.confidence > self.confidence
        ]
        crops = [[crop(records[n].image(side), region.box) for n, region in todo] for side in self.reads]
        values = cosines(self.encoder, *crops).tolist() if todo else []
        made: list[list[Record]] = [[] for _ in records]
        masks: list[Tensor] = []
        children: list[Record] = []
        for value, (number, region) in sorted(zip(values, todo, strict=True), key=lambda item: item[0]):
            if value >= self.alike or len(made[number]) == self.most:
                continue
            child = records[number].child(str(len(made[number])))
            child.facts["size"] = list(child.image("before").shape[1:])
            child.facts["areas"] = [{"box": list(region.box), "similarity": round(value, 4), "dropped": None}]
            made[number].append(child)
            children.append(child)
            masks.append(region.mask)
        seeds = [int(record_seed(self.seed, child.id).integers(2**31)) for child in children]
        pictures = self.inpainter.fill([child.image("before") for child in children], masks, seeds) if children else []
        for child, picture in zip(children, pictures, strict=True):
            child.put("with", child.image("before"))
            child.put("without", picture)
        for record, own in zip(records, made, strict=True):
            if not own:
                record.drop("no object", None, f"a region with crops below {self.alike:g}")
                own.append(record)
        return made


class RemovedObjects(Stage):
    """Describes what was erased and checks that the description fits the one picture and not the other.

    Args:
        captioner: of the crop with the object.
        matcher: of crops and descriptions.
        present: least score where the object is; excluded.
        absent: greatest score where it is not; excluded.
        seed: see `Stage`.
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
        return {**self.slot_settings(), "present": self.present, "absent": self.absent}

    def process(self, records: list[Record]) -> list[Record]:
        crops = [crop(record.image(side), record.facts["areas"][0]["box"]) for side in self.reads for record in records]
        texts = [" ".join(text.split()) for text in self.captioner.caption(crops[: len(records)])]
        scores = self.matcher.match(crops, [*texts, *texts]).tolist()
        for number, (record, text) in enumerate(zip(records, texts, strict=True)):
            area = record.facts["areas"][0]
            inside, outside = scores[number], scores[number + len(records)]
            area["captions"], area["match"] = [text], [round(inside, 4), round(outside, 4)]
            record.score(present=inside, absent=outside)
            if not text:
                reject(area, "empty caption", "", "some words")
            elif inside <= self.present:
                reject(area, "object not recognised", round(inside, 4), f"above {self.present:g}")
            elif outside >= self.absent:
                reject(area, "object still there", round(outside, 4), f"below {self.absent:g}")
            if area["dropped"] is not None:
                record.drop(area["dropped"]["reason"], area["dropped"]["value"], area["dropped"]["limit"])
            else:
                ask(record, record_seed(self.seed, record.id).random() < 0.5)
        return records


def ask(record: Record, object_left: bool) -> None:
    """Turn an exist-absent pair into left and right picture with a question and its letter.

    Args:
        record: with the pictures ``with`` and ``without`` and a described area.
        object_left: whether the picture with the object comes first.
    """
    area = record.facts["areas"][0]
    sides = ("with", "without") if object_left else ("without", "with")
    for name, side in zip(("before", "after"), sides, strict=True):
        record.put(name, record.image(side))
    record.facts["edit"] = "remove" if object_left else "add"
    record.facts["question"] = QUESTION.format(description=area["captions"][0])
    record.facts["answer"] = "A" if object_left else "B"


class ReleaseRemoval(Stage):
    """Writes the kept questions as ``img_diff_object_removal.json``, with red boxes drawn on both pictures.

    Args:
        folder: that is written; its files are replaced.
        seed: see `Stage`.
    """

    def __init__(self, folder: str, seed: int = 0) -> None:
        super().__init__(seed)
        self.folder = Path(folder).expanduser()

    def process(self, records: list[Record]) -> list[Record]:
        return records

    def finish(self, store: RecordStore) -> None:
        (self.folder / "inpaint").mkdir(parents=True, exist_ok=True)
        released = []
        for record in store:
            for area in kept(record.facts.get("areas") or []) if record.dropped is None else []:
                path = f"inpaint/{file_name(record.id)}"
                for number, side in enumerate(("before", "after")):
                    boxed = draw_box(record.image(side), area["box"])
                    (self.folder / f"{path}_{number}.png").write_bytes(encode_png(boxed))
                released.append(
                    {
                        "bbox": normalised(area["box"], record.facts["size"]),
                        "conversations": [
                            {"from": "human", "value": record.facts["question"]},
                            {"from": "gpt", "value": record.facts["answer"]},
                        ],
                        "path": f"./{path}",
                    }
                )
        target = self.folder / "img_diff_object_removal.json"
        target.write_text(json.dumps(released, ensure_ascii=False, indent=1), encoding="utf-8")
        print(f"{len(released)} questions: {target}", flush=True)
