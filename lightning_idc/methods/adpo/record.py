"""NegativeRecord: the last comparison of each pair of a run, for benchmarks/studies/negatives.py (ADPO Figure 5)."""

from __future__ import annotations

import zlib
from pathlib import Path

from torch import Tensor

from lightning_idc.images.types import PairBatch
from lightning_idc.models.distributed import all_gather_dict, is_rank_zero
from lightning_idc.utils.outputs import save_json

NEGATIVES = "negatives.json"
MAX_PAIRS = 2000
"""Maximum number of pairs to record per process; the same pairs in every run over the same data."""


class NegativeRecord:
    """The first comparison of each pair in its last step: chosen caption, rejected caption and margin."""

    def __init__(self) -> None:
        # margins stay on their device: reading one waits for the accelerator
        self._comparisons: dict[str, tuple[str, str, Tensor, int]] = {}
        self._bound = 1 << 32

    def update(self, batch: PairBatch, rejected: list[list[str]], margins: Tensor) -> None:
        """Record a step.

        Args:
            batch: B pairs with their chosen captions.
            rejected: K rejected captions per pair.
            margins: margins of the comparisons, ``(B, K)``, without gradient.
        """
        for row, (id, chosen, negatives) in enumerate(zip(batch.ids, batch.chosen, rejected, strict=True)):
            if chosen and zlib.crc32(id.encode()) < self._bound:
                self._comparisons[id] = (chosen[0], negatives[0], margins, row)
        if len(self._comparisons) > 2 * MAX_PAIRS:
            ids = sorted(self._comparisons, key=lambda id: zlib.crc32(id.encode()))[:MAX_PAIRS]
            self._bound = zlib.crc32(ids[-1].encode()) + 1
            self._comparisons = {id: self._comparisons[id] for id in ids}

    def save(self, folder: str | Path) -> None:
        """Write the records of all processes; all of them must call this, rank 0 writes."""
        local = {
            id: {"positive": positive, "negative": negative, "margin": float(margins[row, 0])}
            for id, (positive, negative, margins, row) in self._comparisons.items()
        }
        records = all_gather_dict(local)
        if records and is_rank_zero():
            save_json(Path(folder) / NEGATIVES, records)
