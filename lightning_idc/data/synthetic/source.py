"""Rendered pairs as a source that data modules read."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lightning_idc.data.source import PairSource
from lightning_idc.data.synthetic.cache import Key, ensure
from lightning_idc.images.types import PairSample


class SyntheticSource(PairSource):
    """Pairs of one split, read from disk as they are asked for.

    Args:
        key: what to read, and to render when it is not there yet.
        root: folder of all rendered data.
        progress: show a bar with the time left while rendering.
        workers: threads that render; None for one per core.

    Raises:
        StoreError: the pairs cannot be written.
    """

    def __init__(self, key: Key, root: Path, progress: bool = True, workers: int | None = None) -> None:
        self.key = key
        self.folder = ensure(key, root, progress, workers)
        self.ids = [f"{key.mode}-{key.split}-{index:06d}" for index in range(key.pairs)]
        self._open()

    def _open(self) -> None:
        store = self.key.plan(self.folder.parent).open()
        pairs, texts = store.table("pairs"), list(store.table("texts").batches())
        self.images, self.seen, self._truth = (pairs.column(name) for name in ("images", "seen", "truth"))
        self._captions: list[list[str]] = [row for batch in texts for row in batch.column("captions").to_pylist()]
        self._kinds: list[str] = [row for batch in texts for row in batch.column("change_type").to_pylist()]

    def __getstate__(self) -> dict[str, Any]:
        # captions would be copied to every worker; they are read again instead
        return {"key": self.key, "folder": self.folder, "ids": self.ids}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def __len__(self) -> int:
        return self.key.pairs

    def captions(self, index: int) -> list[str]:
        """All references of a pair."""
        return self._captions[index]

    def change_type(self, index: int) -> str:
        """Kind of the (first) change of a pair."""
        return self._kinds[index]

    def truth(self, index: int) -> dict[str, Any]:
        """Everything known about a pair, in plain types: see `truth.measure`."""
        return json.loads(self._truth[index])

    def load(self, index: int) -> PairSample:
        """One pair with its images, references, boxes, masks and truth."""
        truth = self.truth(index)
        before, after = torch.from_numpy(np.array(self.images[index]))
        seen = self.seen[index]
        masks = np.empty(seen.shape, bool)
        for side, name in enumerate(("before", "after")):
            involved = np.zeros(len(truth[name]["things"]) + 1, bool)  # index -1, nothing seen, reads the last
            involved[[thing for change in truth["changes"] for thing in change[name]]] = True
            masks[side] = involved[seen[side]]
        empty = [math.nan] * 4
        boxes = [[box or empty for box in change] for change in truth["boxes"]]
        return PairSample(
            id=self.ids[index],
            before=before,
            after=after,
            captions=list(self._captions[index]),
            change_type=self._kinds[index],
            boxes=torch.tensor(boxes, dtype=torch.float32).reshape(-1, 2, 4),
            masks=torch.from_numpy(masks),
            meta=truth,
        )
