"""Release of Img-Diff data in its authors' layout, and as a folder for training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from lightning_idc.methods.img_diff.filtering import accepted
from lightning_idc.methods.img_diff.prompts import RELEASED_QUESTION, box_in_fractions
from lightning_idc.synthesis.drawing import draw_box
from lightning_idc.synthesis.records import Record, encode_image
from lightning_idc.synthesis.release import ReleasePairs, file_name
from lightning_idc.synthesis.store import RecordStore
from lightning_idc.utils.bounds import check_arguments
from lightning_idc.utils.files import write_content

REPLACEMENT = "img_diff_object_replacement.json"
IMAGE_FOLDER = "object_replacement/filtered_new_edit_data"
"""Folder of the images, as in the authors' archive."""


class Release(ReleasePairs):
    """Writes the accepted pairs as `ReleasePairs` does, and their boxes in the authors' layout, which `ImgDiff` reads.

    Each box has its own pair of JPEG images, ``object_replacement/filtered_new_edit_data/NAME_k_0.jpg`` and
    ``_1.jpg``, with ``NAME_k`` as ``path``. The box is drawn in red, as the question asks about "the red bounding box".

    Args:
        folder: output folder; files of an earlier release are replaced.
        boxes: ``drawn`` into the images, or ``plain``, without boxes, for models that read their coordinates.
        options: further arguments of `ReleasePairs`.
    """

    def __init__(self, folder: str, boxes: Literal["drawn", "plain"] = "drawn", **options: Any) -> None:
        check_arguments(Release.__init__, locals())
        super().__init__(folder, **options)
        self.boxes = boxes

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "boxes": self.boxes}

    def write(self, store: RecordStore, folder: Path) -> None:
        super().write(store, folder)
        (folder / IMAGE_FOLDER).mkdir(parents=True)
        released: list[dict[str, Any]] = []
        for record in store:
            if record.dropped is None:
                self._write_images(record, folder / IMAGE_FOLDER)
                released += entries(record)
        text = json.dumps(released, ensure_ascii=False, indent=1)
        write_content(folder / REPLACEMENT, text)
        print(f"{len(released)} boxes: {self.folder / REPLACEMENT}", flush=True)

    def _write_images(self, record: Record, folder: Path) -> None:
        for number, area in enumerate(accepted(record.facts["areas"])):
            for side, image in enumerate(record.pair()):
                drawn = draw_box(image, area["box"]) if self.boxes == "drawn" else image
                write_content(folder / f"{file_name(record.id)}_{number}_{side}.jpg", encode_image(drawn, "jpeg"))


def entries(record: Record) -> list[dict[str, Any]]:
    """One entry for each accepted box in the format of the released replacement data.

    ``bbox`` is a list of fractions with two decimals, as text; ``path`` is without the ending ``_0.jpg`` or ``_1.jpg``.

    Args:
        record: record with the facts ``areas`` and ``size``.
    """
    return [
        {
            "path": f"{file_name(record.id)}_{number}",
            "bbox": f"[{', '.join(box_in_fractions(area['box'], record.facts['size']))}]",
            "captions1": area["captions"][0],
            "captions2": area["captions"][1],
            "conversations": [
                {"from": "human", "value": RELEASED_QUESTION},
                {"from": "gpt", "value": area["difference"]},
            ],
        }
        for number, area in enumerate(accepted(record.facts["areas"]))
    ]
