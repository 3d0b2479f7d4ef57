"""Source of rendered pairs."""

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
    """Rendered pairs of one split, read from disk on access.

    Args:
        key: settings of the pairs, which are rendered if they are not cached.
        root: root folder of the cache.
        progress: whether to show a progress bar while rendering.
        workers: number of rendering threads; None for one per core.

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
        # without the captions: workers read them again, which avoids copies
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
        """Type of the (first) change of a pair."""
        return self._kinds[index]

    def ground_truth(self, index: int) -> dict[str, Any]:
        """Ground truth of a pair in plain types; see `truth.measure`."""
        return json.loads(self._truth[index])

    def load(self, index: int) -> PairSample:
        """Pair with its images, references, boxes, masks and ground truth."""
        ground_truth = self.ground_truth(index)
        before, after = torch.from_numpy(np.array(self.images[index]))
        seen = self.seen[index]
        masks = np.empty(seen.shape, bool)
        for side, name in enumerate(("before", "after")):
            # the last entry is for the index -1, no object
            involved = np.zeros(len(ground_truth[name]["things"]) + 1, bool)
            involved[[thing for change in ground_truth["changes"] for thing in change[name]]] = True
            masks[side] = involved[seen[side]]
        empty = [math.nan] * 4
        boxes = [[box or empty for box in change] for change in ground_truth["boxes"]]
        return PairSample(
            id=self.ids[index],
            before=before,
            after=after,
            captions=list(self._captions[index]),
            change_type=self._kinds[index],
            boxes=torch.tensor(boxes, dtype=torch.float32).reshape(-1, 2, 4),
            masks=torch.from_numpy(masks),
            meta=ground_truth,
        )
