"""Images with the name of what stands in each cell of a grid: labels to pre-train a small image encoder with."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from lightning_idc.data.synthetic.source import SyntheticSource
from lightning_idc.data.synthetic.truth import ATTRIBUTE_WORDS, cell_labels

CELL_CLASSES = {name: len(words) + 1 for name, words in ATTRIBUTE_WORDS.items()}
"""Number of labels of each attribute, in the order of the label maps; 0 means that nothing stands in the cell."""


class ObjectCells(Dataset[tuple[Tensor, Tensor]]):
    """Both images of every pair of a source, each with its label maps.

    An item is the image, uint8 ``(3, H, W)``, and the labels, int64 ``(4, grid, grid)``: shape, size, color and
    material of the thing that covers most of the cell, 0 where there is none, else 1 + its place in `ATTRIBUTE_WORDS`.

    Args:
        source: rendered pairs.
        grid: cells along each side.
        least: share of a cell that a thing must cover to be named there.
    """

    def __init__(self, source: SyntheticSource, grid: int = 8, least: float = 0.08) -> None:
        self.source = source
        self.grid = grid
        self.least = least

    def __len__(self) -> int:
        return 2 * len(self.source)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        pair, side = divmod(index, 2)
        things = self.source.truth(pair)["after" if side else "before"]["things"]
        labels = cell_labels(self.source.seen[pair, side], things, self.grid, self.least)
        image = torch.from_numpy(np.array(self.source.images[pair, side]))
        return image, torch.from_numpy(labels.astype(np.int64))
