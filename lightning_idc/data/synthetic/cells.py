"""Rendered images with grid-cell labels of objects, for pre-training a small image encoder."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from lightning_idc.data.splits import Split
from lightning_idc.data.synthetic.datamodule import SyntheticPairs
from lightning_idc.data.synthetic.source import SyntheticSource
from lightning_idc.data.synthetic.truth import ATTRIBUTE_WORDS, cell_labels
from lightning_idc.utils.bounds import PositiveInt, check_arguments
from lightning_idc.utils.errors import ConfigError

CELL_CLASSES = {name: len(words) + 1 for name, words in ATTRIBUTE_WORDS.items()}
"""Number of labels of each attribute, in the order of the label maps; label 0 means an empty cell."""


class ObjectCells(Dataset[tuple[Tensor, Tensor]]):
    """Single images of all pairs of a source with their label maps.

    An item is the image, uint8 ``(3, H, W)``, and the labels, int64 ``(4, rows, columns)``: size, color, material and
    shape of the object that covers most of the cell, as 1 + its index in `ATTRIBUTE_WORDS`, or 0 for an empty cell.

    Args:
        source: source of rendered pairs.
        grid: numbers of rows and columns, or one number for both.
        min_share: minimum fraction of a cell that an object must cover to be its label.
    """

    def __init__(self, source: SyntheticSource, grid: int | tuple[int, int] = 8, min_share: float = 0.08) -> None:
        self.source = source
        self.grid = grid
        self.min_share = min_share
        # labels are cached in the first epoch: 256 bytes each, faster than parsing the ground truth again
        shape = (grid, grid) if isinstance(grid, int) else grid
        self._labels = np.zeros((2 * len(source), len(ATTRIBUTE_WORDS), *shape), np.uint8)
        self._is_cached = np.zeros(2 * len(source), bool)

    def __len__(self) -> int:
        return len(self._is_cached)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        pair, side = divmod(index, 2)
        if not self._is_cached[index]:
            things = self.source.ground_truth(pair)["after" if side else "before"]["things"]
            self._labels[index] = cell_labels(self.source.seen[pair][side], things, self.grid, self.min_share)
            self._is_cached[index] = True
        image = torch.from_numpy(np.array(self.source.images[pair][side]))
        return image, torch.from_numpy(self._labels[index].astype(np.int64))


class PairsOfCells(Dataset[tuple[Tensor, Tensor]]):
    """Pairs of images with their label maps: uint8 ``(2, 3, H, W)`` and int64 ``(2, 4, rows, columns)``.

    Args:
        cells: data set of the single images.
    """

    def __init__(self, cells: ObjectCells) -> None:
        self.cells = cells

    def __len__(self) -> int:
        return len(self.cells) // 2

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        (before, before_labels), (after, after_labels) = self.cells[2 * index], self.cells[2 * index + 1]
        return torch.stack([before, after]), torch.stack([before_labels, after_labels])


class SyntheticCells(SyntheticPairs):
    """:class:`SyntheticPairs` with batches of images and cell labels instead of captions.

    A batch is a tuple of images, uint8 ``(N, 3, H, W)``, and labels, int64 ``(N, 4, rows, columns)``; with ``pairs``
    the shapes are ``(B, 2, 3, H, W)`` and ``(B, 2, 4, rows, columns)``.

    Args:
        grid: numbers of rows and columns, or one number for both.
        batch_size: images (or pairs) per batch.
        pairs: whether an item is both images of a pair.
        kwargs: arguments of `SyntheticPairs`.

    Raises:
        ConfigError: `image_size` or `transform` is set, which would invalidate the labels.

    Example:
        >>> sizes = {"train_pairs": 2, "val_pairs": 1, "test_pairs": 1, "render_size": 16}
        >>> data = SyntheticCells(grid=2, batch_size=2, progress=False, **sizes)
        >>> images, cells = next(iter(data.val_dataloader()))
        >>> images.shape, cells.shape
        (torch.Size([2, 3, 16, 16]), torch.Size([2, 4, 2, 2]))
    """

    def __init__(
        self,
        grid: PositiveInt | tuple[PositiveInt, PositiveInt] = 8,
        batch_size: PositiveInt = 128,
        pairs: bool = False,
        **kwargs: Any,
    ) -> None:
        check_arguments(SyntheticCells.__init__, locals())
        super().__init__(batch_size=batch_size, **kwargs)
        if self.image_size is not None or self.transform is not None:
            raise ConfigError(
                "cell labels are valid for rendered images only: set render_size, not image_size or transform"
            )
        self.grid, self.pairs = grid, pairs

    def _cells(self, split: Split) -> DataLoader[tuple[Tensor, Tensor]]:
        order = torch.Generator().manual_seed(self.seed)  # leaves the global generator to the model
        single = ObjectCells(self.source(split), self.grid)
        cells = PairsOfCells(single) if self.pairs else single
        items_per_pair = len(cells) // len(self.source(split))
        indices = range(len(cells) if self.limit is None else min(len(cells), items_per_pair * self.limit))
        return DataLoader(
            Subset(cells, indices),
            self.batch_size,
            shuffle=split == "train",
            num_workers=self.num_workers,
            generator=order,
        )

    def train_dataloader(self) -> Any:
        return self._cells("train")

    def val_dataloader(self) -> Any:
        return self._cells("val")

    def test_dataloader(self) -> Any:
        return self._cells("test")
