"""Pair generation from two captions: a text-to-image model that keeps the layout (section 3.2 of the paper)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from lightning_idc.synthesis.records import Record, record_seed
from lightning_idc.synthesis.slots.base import Slot
from lightning_idc.synthesis.stages import Stage


class PairPainter(Slot):
    """Paints two captions that differ in one object as pictures that differ in one place."""

    @abstractmethod
    def paint(self, captions: Sequence[tuple[str, str]], seeds: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """Two pictures for each pair of captions, uint8 ``(3, H, W)``."""


class PaintPairs(Stage):
    """Paints the fact ``captions``; writes ``before`` and ``after``.

    Args:
        painter: the paper's is SDXL with prompt-to-prompt.
        seed: see `Stage`.
    """

    def __init__(self, painter: PairPainter, seed: int = 0) -> None:
        super().__init__(seed)
        self.painter = painter

    def settings(self) -> dict[str, Any]:
        return {"painter": self.painter.settings()}

    def process(self, records: list[Record]) -> list[Record]:
        captions = [(record.facts["captions"][0], record.facts["captions"][1]) for record in records]
        seeds = [int(record_seed(self.seed, record.id).integers(2**31)) for record in records]
        for record, pair in zip(records, self.painter.paint(captions, seeds), strict=True):
            record.facts["edit"] = "replace"
            for side, picture in zip(("before", "after"), pair, strict=True):
                record.put(side, picture)
        return records
