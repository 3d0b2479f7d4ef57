"""The JSON of the released Img-Diff data, beside a folder that any captioner trains on."""

from __future__ import annotations

import json
from typing import Any

from lightning_idc.methods.img_diff.areas import kept
from lightning_idc.synthesis.records import Record
from lightning_idc.synthesis.release import ReleasePairs, file_name
from lightning_idc.synthesis.store import RecordStore

QUESTION = (
    "Analyse the left image and the right image (separated by the black vertical bar). "
    "What is the difference between the two images within the red bounding box?"
)


class Release(ReleasePairs):
    """Writes the kept pairs as `ReleasePairs` does, and their boxes as ``img_diff_object_replacement.json``."""

    def finish(self, store: RecordStore) -> None:
        super().finish(store)
        released = [entry for record in store if record.dropped is None for entry in entries(record)]
        target = self.folder / "img_diff_object_replacement.json"
        target.write_text(json.dumps(released, ensure_ascii=False, indent=1), encoding="utf-8")
        print(f"{len(released)} boxes: {target}", flush=True)


def entries(record: Record) -> list[dict[str, Any]]:
    """One entry per kept box in the form of the released replacement data.

    The box is normalised, rounded to two decimals and a text; ``path`` lacks the ending ``_0.png`` or ``_1.png``.
    """
    return [
        {
            "path": f"images/{file_name(record.id)}",
            "bbox": str(normalised(area["box"], record.facts["size"])),
            "captions1": area["captions"][0],
            "captions2": area["captions"][1],
            "conversations": [
                {"from": "human", "value": QUESTION},
                {"from": "gpt", "value": area["difference"]},
            ],
        }
        for area in kept(record.facts["areas"])
    ]


def normalised(box: list[float], size: list[int]) -> list[float]:
    """Box x1 y1 x2 y2 in shares of width and height, two decimals.

    Args:
        box: pixels.
        size: height and width, pixels.
    """
    height, width = size
    return [round(value / full, 2) for value, full in zip(box, (width, height, width, height), strict=True)]
