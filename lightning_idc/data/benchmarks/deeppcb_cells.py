"""Boards with the defect in each cell of a grid: labels to pre-train a small image encoder with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_idc.core.types import PairError, PairSample, stack_images
from lightning_idc.data.benchmarks.deeppcb import DeepPCB

IGNORED = -100


def change_cells(sample: PairSample, grid: int) -> Tensor:
    """Labels int64 ``(1, grid, grid)`` of the cells of a pair, from its boxes after the change.

    The cell that holds a box's centre is labelled 1 + ``meta["kinds"]`` of that box, other cells that the box touches
    -100, since their centres may lie on either side of an edge, and all the rest 0.

    Args:
        sample: with boxes in pixels and, in ``meta["kinds"]``, one integer for each.
        grid: cells along each side.
    """
    cells = torch.zeros(grid, grid, dtype=torch.long)
    if sample.boxes is None:
        raise PairError(f"pair {sample.id!r} has no boxes to label cells from")
    height, width = sample.after.shape[1:]
    scale = torch.tensor([grid / width, grid / height] * 2)
    places = [(box * scale).clamp(0, grid - 1e-3).tolist() for box in sample.boxes[:, 1]]
    for left, top, right, bottom in places:
        touched = cells[int(top) : int(bottom) + 1, int(left) : int(right) + 1]
        touched[touched == 0] = IGNORED
    for (left, top, right, bottom), kind in zip(places, sample.meta["kinds"], strict=True):
        cells[int((top + bottom) / 2), int((left + right) / 2)] = kind + 1
    return cells[None]


class DeepPCBCells(DeepPCB):
    """The pairs of `DeepPCB` with the same arguments, batched with their cell labels instead of captions.

    Batches are images, uint8 ``(B, 2, 3, H, W)``, and labels, int64 ``(B, 1, grid, grid)``: 0 for no defect, 1 to 6 for
    one of `deeppcb.TYPES` whose box has its centre there.

    Args:
        grid: cells along each side.
        options: of `DeepPCB`.

    Example:
        >>> images, cells = next(iter(DeepPCBCells(root="data/deeppcb", batch_size=1).test_dataloader()))
        >>> images.shape[:3], cells.shape
        (torch.Size([1, 2, 3]), torch.Size([1, 1, 20, 20]))
    """

    def __init__(self, grid: int = 20, **options: Any) -> None:
        super().__init__(**options)
        self.grid = grid

    def _collate(self) -> Any:
        return self._cells

    def _cells(self, samples: Sequence[PairSample]) -> tuple[Tensor, Tensor]:
        return stack_images(samples), torch.stack([change_cells(sample, self.grid) for sample in samples])
