"""NegativeRecord: writes the last comparison of each pair of a run to ``negatives.json`` (ADPO Figure 5)."""

from __future__ import annotations

import zlib
from pathlib import Path

from torch import Tensor

from lightning_idc.images.types import PairBatch
from lightning_idc.models.distributed import all_gather_dict, is_rank_zero
from lightning_idc.utils.outputs import save_json

NEGATIVES = "negatives.json"
MAX_PAIRS = 2000
"""Maximum number of pairs to record per process. They are selected by the hash of their id, so that all runs over the
same data record the same pairs."""


class NegativeRecord:
    """Records, for each pair, the first comparison of the last step: chosen caption, rejected caption and margin.

    ``benchmarks/studies/negatives.py`` reads the file.
    """

    def __init__(self) -> None:
        # margins stay on their device: reading one waits for the accelerator
        self._comparisons: dict[str, tuple[str, str, Tensor, int]] = {}
        self._max_hash = 1 << 32

    def update(self, batch: PairBatch, rejected: list[list[str]], margins: Tensor) -> None:
        """Record a step.

        Args:
            batch: B pairs with their chosen captions.
            rejected: K rejected captions per pair.
            margins: margins of the comparisons, ``(B, K)``, without gradient.
        """
        for row, (id, chosen, negatives) in enumerate(zip(batch.ids, batch.chosen, rejected, strict=True)):
            if chosen and zlib.crc32(id.encode()) < self._max_hash:
                self._comparisons[id] = (chosen[0], negatives[0], margins, row)
        if len(self._comparisons) > 2 * MAX_PAIRS:
            ids = sorted(self._comparisons, key=lambda id: zlib.crc32(id.encode()))[:MAX_PAIRS]
            self._max_hash = zlib.crc32(ids[-1].encode()) + 1
            self._comparisons = {id: self._comparisons[id] for id in ids}

    def save(self, folder: str | Path) -> None:
        """Gather the records of all processes and write them on rank 0. All processes must call this method."""
        local = {
            id: {"positive": positive, "negative": negative, "margin": float(margins[row, 0])}
            for id, (positive, negative, margins, row) in self._comparisons.items()
        }
        records = all_gather_dict(local)
        if records and is_rank_zero():
            save_json(Path(folder) / NEGATIVES, records)
