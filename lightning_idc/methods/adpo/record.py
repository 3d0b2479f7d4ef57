"""NegativeRecord: what a run compared last, pair by pair, for `lightning-idc case-study` (ADPO Figure 5)."""

from __future__ import annotations

import zlib
from pathlib import Path

from torch import Tensor

from lightning_idc.images.types import PairBatch
from lightning_idc.models.distributed import all_gather_dict, is_rank_zero
from lightning_idc.utils.outputs import save_json

NEGATIVES = "negatives.json"
KEPT = 2000
"""Pairs of each process that are kept, the same ones in every run over the same data."""


class NegativeRecord:
    """The first comparison of each pair in its last step: chosen caption, rejected caption and margin."""

    def __init__(self) -> None:
        # margins stay where they are: reading one waits for the accelerator
        self._met: dict[str, tuple[str, str, Tensor, int]] = {}
        self._bound = 1 << 32

    def update(self, batch: PairBatch, rejected: list[list[str]], margins: Tensor) -> None:
        """Remember a step.

        Args:
            batch: with the chosen captions.
            rejected: captions, K per pair.
            margins: of the comparisons ``(B, K)``, without gradient.
        """
        for place, (id, chosen, others) in enumerate(zip(batch.ids, batch.chosen, rejected, strict=True)):
            if chosen and zlib.crc32(id.encode()) < self._bound:
                self._met[id] = (chosen[0], others[0], margins, place)
        if len(self._met) > 2 * KEPT:
            kept = sorted(self._met, key=lambda id: zlib.crc32(id.encode()))[:KEPT]
            self._bound = zlib.crc32(kept[-1].encode()) + 1
            self._met = {id: self._met[id] for id in kept}

    def save(self, folder: str | Path) -> None:
        """Write what all processes met; all of them must call this, the first one writes."""
        rows = {
            id: {"positive": positive, "negative": negative, "margin": float(margins[place, 0])}
            for id, (positive, negative, margins, place) in self._met.items()
        }
        found = all_gather_dict(rows)
        if found and is_rank_zero():
            save_json(Path(folder) / NEGATIVES, found)
