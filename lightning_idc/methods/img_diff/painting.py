"""Pair generation from two captions: a text-to-image model that keeps the layout (section 3.2 of the paper)."""

from __future__ import annotations

from typing import Any

from lightning_idc.synthesis.models.base import PairPainter
from lightning_idc.synthesis.records import Record, record_generator
from lightning_idc.synthesis.stages import PipelineStage


class PaintPairs(PipelineStage):
    """Generates ``before`` and ``after`` from the two texts of the fact ``captions``.

    Args:
        painter: text-to-image model of pairs; SDXL with prompt-to-prompt in the paper.
        seed: random seed, as in `PipelineStage`.
    """

    def __init__(self, painter: PairPainter, seed: int = 0) -> None:
        super().__init__(seed)
        self.painter = painter

    def settings(self) -> dict[str, Any]:
        return {"painter": self.painter.settings()}

    def pixels_per_record(self) -> int:
        return 2 * (self.painter.size or 1024) ** 2

    def process(self, records: list[Record]) -> list[Record]:
        # quotes around a caption are not part of it (ImgDiff scripts)
        captions = [(first.strip('"'), second.strip('"')) for first, second in (r.facts["captions"] for r in records)]
        seeds = [int(record_generator(self.seed, record.id).integers(2**31)) for record in records]
        for record, pair in zip(records, self.painter.paint(captions, seeds), strict=True):
            record.facts["edit"] = "replace"
            for side, image in zip(("before", "after"), pair, strict=True):
                record.put(side, image)
        return records
