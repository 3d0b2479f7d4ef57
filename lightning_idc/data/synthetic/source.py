"""Rendered pairs as a source that data modules read."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lightning_idc.core.types import PairSample
from lightning_idc.data.core.source import PairSource
from lightning_idc.data.synthetic.cache import Key, ensure


class SyntheticSource(PairSource):
    """Pairs of one split, read from disk as they are asked for.

    Args:
        key: what to read, and to render when it is not there yet.
        root: folder of all rendered data.
        progress: show a bar with the time left while rendering.
        workers: threads that render; None for one per core.

    Raises:
        CacheError: the folder is damaged or of another version, or cannot be written.
    """

    def __init__(self, key: Key, root: Path, progress: bool = True, workers: int | None = None) -> None:
        self.key = key
        self.folder = ensure(key, root, progress, workers)
        self.ids = [f"{key.mode}-{key.split}-{index:06d}" for index in range(key.pairs)]
        self._open()

    def _open(self) -> None:
        # plain arrays over the mapped files: slices of the memmap class cost more
        self.images = np.asarray(np.load(self.folder / "images.npy", mmap_mode="r"))
        self.seen = np.asarray(np.load(self.folder / "seen.npy", mmap_mode="r"))
        self._records = np.asarray(np.memmap(self.folder / "records.jsonl", np.uint8, "r"))
        self._offsets: list[int] = np.load(self.folder / "offsets.npy").tolist()
        texts = json.loads((self.folder / "captions.json").read_text())
        self._captions: list[list[str]] = texts["captions"]
        self._kinds: list[str] = texts["kinds"]

    def __getstate__(self) -> dict[str, Any]:
        # a pickled memory map is a copy of the whole file; workers open their own
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
        start, end = self._offsets[index], self._offsets[index + 1]
        return json.loads(self._records[start:end].tobytes())

    def load(self, index: int) -> PairSample:
        """One pair with its images, references, boxes, masks and truth."""
        truth = self.truth(index)
        before, after = torch.from_numpy(np.array(self.images[index]))
        masks = np.empty(self.seen.shape[1:], bool)
        for side, name in enumerate(("before", "after")):
            involved = np.zeros(len(truth[name]["things"]) + 1, bool)  # index -1, nothing seen, reads the last
            involved[[thing for change in truth["changes"] for thing in change[name]]] = True
            masks[side] = involved[self.seen[index, side]]
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
