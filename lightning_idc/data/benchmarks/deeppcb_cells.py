"""DeepPCB with grid-cell labels of the defects, for pre-training a small image encoder."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_idc.data.benchmarks.deeppcb import DeepPCB
from lightning_idc.images.types import PairSample, stack_images
from lightning_idc.utils.bounds import PositiveInt, check_arguments
from lightning_idc.utils.errors import DataError

IGNORED = -100


def change_cells(sample: PairSample, cell: int) -> Tensor:
    """Label the grid cells of a pair, int64 ``(1, rows, columns)``, by its boxes in the after image.

    The cell of a box's centre and its eight neighbours are labelled 1 + ``meta["kinds"]`` of that box, so that each
    defect has 3 x 3 positive cells; the cells around these are -100 (ignored), and all other cells are 0.

    Args:
        sample: pair with boxes in pixels (NaN for no extent) and one integer per box in ``meta["kinds"]``.
        cell: height and width of a cell in pixels.
    """
    if sample.boxes is None:
        raise DataError(f"pair {sample.id!r} has no boxes; expected boxes to label the cells")
    rows, columns = (side // cell for side in sample.after.shape[1:])
    cells = torch.zeros(rows, columns, dtype=torch.long)
    centres = ((sample.boxes[:, 1, :2] + sample.boxes[:, 1, 2:]) / 2 / cell).tolist()
    kinds = sample.meta["kinds"]
    boxes = [(centre, kind) for centre, kind in zip(centres, kinds, strict=True) if not math.isnan(centre[0])]
    for radius in (2, 1, 0):  # the innermost last, so that each of two close boxes keeps the cell of its centre
        for (x, y), kind in boxes:
            top, left = math.floor(y) - radius, math.floor(x) - radius
            block = cells[max(0, top) : max(0, top + 2 * radius + 1), max(0, left) : max(0, left + 2 * radius + 1)]
            block[...] = IGNORED if radius == 2 else kind + 1
    return cells[None]


class DeepPCBCells(DeepPCB):
    """:class:`DeepPCB` with batches of images and cell labels instead of captions.

    A batch is a tuple of images, uint8 ``(B, 2, 3, H, W)``, and labels, int64 ``(B, 1, rows, columns)``: 0 for no
    defect, 1 to 6 for one of `deeppcb.TYPES` with the centre of its box in this or an adjacent cell, -100 around these.

    Args:
        cell: height and width of a cell in pixels after resizing; the stride of the backbone.
        options: arguments of `DeepPCB`.

    Example:
        >>> images, cells = next(iter(DeepPCBCells(root="data/deeppcb", batch_size=1).test_dataloader()))
        >>> images.shape[:3], cells.shape
        (torch.Size([1, 2, 3]), torch.Size([1, 1, 80, 80]))
    """

    def __init__(self, cell: PositiveInt = 8, **options: Any) -> None:
        check_arguments(DeepPCBCells.__init__, locals())
        super().__init__(**options)
        self.cell = cell

    def _collate(self) -> Any:
        return self._cells

    def _cells(self, samples: Sequence[PairSample]) -> tuple[Tensor, Tensor]:
        return stack_images(samples), torch.stack([change_cells(sample, self.cell) for sample in samples])
