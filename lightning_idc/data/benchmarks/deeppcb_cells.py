"""Boards with the defect in each cell of a grid: labels to pre-train a small image encoder with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_idc.core.types import PairError, PairSample, stack_images
from lightning_idc.data.benchmarks.deeppcb import DeepPCB

IGNORED = -100


def change_cells(sample: PairSample, cell: int, exact: bool = False) -> Tensor:
    """Labels int64 ``(1, rows, columns)`` of the cells of a pair, from its boxes after the change.

    The cell that holds a box's centre is labelled 1 + ``meta["kinds"]`` of that box, other cells that the box touches
    -100, since their centres may lie on either side of an edge, and all the rest 0.

    Args:
        sample: with boxes in pixels, NaN where there is nothing, and, in ``meta["kinds"]``, one integer for each.
        cell: height and width of a cell, pixels.
        exact: label those other cells 0, so that the probabilities of a network sum to the number of boxes.
    """
    if sample.boxes is None:
        raise PairError(f"pair {sample.id!r} has no boxes to label cells from")
    rows, columns = (side // cell for side in sample.after.shape[1:])
    cells = torch.zeros(rows, columns, dtype=torch.long)
    places = (sample.boxes[:, 1] / cell).tolist()
    kept = [(place, kind) for place, kind in zip(places, sample.meta["kinds"], strict=True) if place[0] == place[0]]
    for (left, top, right, bottom), _ in [] if exact else kept:
        touched = cells[max(0, int(top)) : int(bottom) + 1, max(0, int(left)) : int(right) + 1]
        touched[touched == 0] = IGNORED
    for (left, top, right, bottom), kind in kept:
        cells[min(int((top + bottom) / 2), rows - 1), min(int((left + right) / 2), columns - 1)] = kind + 1
    return cells[None]


class DeepPCBCells(DeepPCB):
    """The pairs of `DeepPCB` with the same arguments, batched with their cell labels instead of captions.

    Batches are images, uint8 ``(B, 2, 3, H, W)``, and labels, int64 ``(B, 1, rows, columns)``: 0 for no defect, 1 to 6
    for one of `deeppcb.TYPES` whose box has its centre there.

    Args:
        cell: height and width of a cell, pixels, after resizing: the stride of the backbone.
        exact: cells that a box only touches hold no defect; otherwise they have no label.
        options: of `DeepPCB`.

    Example:
        >>> images, cells = next(iter(DeepPCBCells(cell=16, root="data/deeppcb", batch_size=1).test_dataloader()))
        >>> images.shape[:3], cells.shape
        (torch.Size([1, 2, 3]), torch.Size([1, 1, 40, 40]))
    """

    def __init__(self, cell: int = 8, exact: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.cell, self.exact = cell, exact

    def _collate(self) -> Any:
        return self._cells

    def _cells(self, samples: Sequence[PairSample]) -> tuple[Tensor, Tensor]:
        return stack_images(samples), torch.stack([change_cells(sample, self.cell, self.exact) for sample in samples])
