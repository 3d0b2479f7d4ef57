"""What a pipeline hands on: the JSON of the released Img-Diff data, and a folder that any captioner trains on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lightning_idc.pairs import PairError
from lightning_idc.synthesis.img_diff.areas import kept
from lightning_idc.synthesis.pipeline import Stage
from lightning_idc.synthesis.records import Record, record_seed
from lightning_idc.synthesis.store import RecordStore

QUESTION = (
    "Analyse the left image and the right image (separated by the black vertical bar). "
    "What is the difference between the two images within the red bounding box?"
)


class Release(Stage):
    """Writes the kept pairs into a folder, as ``img_diff_object_replacement.json`` and as a table for `FolderPairs`.

    ``pairs.jsonl`` has one row per pair, with all of its sentences as one caption. The split is drawn by a hash of the
    fact ``file``, so that pairs made of one photograph stay together, or of the id where there is none.

    Args:
        folder: that is written; its files are replaced.
        shares: of train, val and test.
        seed: see `Stage`.
    """

    def __init__(self, folder: str, shares: tuple[float, float, float] = (0.8, 0.1, 0.1), seed: int = 0) -> None:
        super().__init__(seed)
        if len(shares) != 3 or min(shares) < 0 or abs(sum(shares) - 1) > 1e-6:
            raise PairError(f"shares is {tuple(shares)}; expected three numbers for train, val and test that sum to 1")
        self.folder, self.shares = Path(folder).expanduser(), tuple(shares)

    def settings(self) -> dict[str, Any]:
        return {"shares": list(self.shares)}

    def process(self, records: list[Record]) -> list[Record]:
        return records

    def finish(self, store: RecordStore) -> None:
        (self.folder / "images").mkdir(parents=True, exist_ok=True)
        released: list[dict[str, Any]] = []
        lines: list[str] = []
        for record in store:
            if record.dropped is None:
                for number, side in enumerate(("before", "after")):
                    path = self.folder / "images" / f"{file_name(record.id)}_{number}.png"
                    path.write_bytes(record.encoded(side))
                released += entries(record)
                lines.append(json.dumps(self._row(record), ensure_ascii=False))
        target = self.folder / "img_diff_object_replacement.json"
        target.write_text(json.dumps(released, ensure_ascii=False, indent=1), encoding="utf-8")
        (self.folder / "pairs.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        print(f"{len(released)} boxes of {len(lines)} pairs: {target}", flush=True)

    def _row(self, record: Record) -> dict[str, Any]:
        name = file_name(record.id)
        return {
            "id": record.id,
            "before": f"images/{name}_0.png",
            "after": f"images/{name}_1.png",
            "captions": [". ".join(area["difference"].rstrip(".") for area in kept(record.facts["areas"]))],
            "change_type": record.facts.get("edit"),
            "split": self._split(record),
        }

    def _split(self, record: Record) -> str:
        point = record_seed(self.seed, record.facts.get("file") or record.id).random()
        return "train" if point < self.shares[0] else "val" if point < self.shares[0] + self.shares[1] else "test"


def file_name(id: str) -> str:
    """Name of a file for a record, one for each id."""
    kept_signs = "".join(
        sign if sign.isascii() and (sign.isalnum() or sign in "._-") else f"%{ord(sign):x}" for sign in id
    )
    return kept_signs.lstrip(".") or "record"


def entries(record: Record) -> list[dict[str, Any]]:
    """One entry per kept box in the form of the released replacement data.

    The box is normalised, rounded to two decimals and a text, as in ``img_diff_object_replacement.json``.
    """
    found = []
    for area in kept(record.facts["areas"]):
        found.append(
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
        )
    return found


def normalised(box: list[float], size: list[int]) -> list[float]:
    """Box x1 y1 x2 y2 in shares of width and height, two decimals.

    Args:
        box: pixels.
        size: height and width, pixels.
    """
    height, width = size
    return [round(value / full, 2) for value, full in zip(box, (width, height, width, height), strict=True)]
