"""Single changes in a map of how likely each cell of a grid has changed."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

THRESHOLD = 0.4
"""Mean probability around a change; on the validation split of DeepPCB .3 to .5 do nearly the same."""


def peaks(cells: Tensor, threshold: float = THRESHOLD) -> tuple[Tensor, Tensor, Tensor]:
    """Cells in which a change lies, where its centre is, and how sure it is.

    A change is three cells a side. It is found once: where the mean over a cell and its eight neighbours is at least
    ``threshold`` and no greater one is within two cells. Of equal ones the first one is it.

    Args:
        cells: probability that each cell has changed, ``(B, h, w)``.
        threshold: mean over a cell and its neighbours from which on they are a change.

    Returns:
        Image, row and column of each peak, int64 ``(P, 3)`` in that order; the centre of mass of the cells within two
        of it, ``(P, 2)`` as y x, in cells from the upper left corner of the grid; and its mean, ``(P,)``.

    Example:
        >>> cells = torch.zeros(1, 5, 6)
        >>> cells[0, 1:4, 1:4], cells[0, 1:4, 4] = 1.0, 0.3
        >>> places, centres, means = peaks(cells)
        >>> places.tolist(), [round(value, 2) for value in centres[0].tolist()], means.tolist()
        ([[0, 2, 2]], [2.5, 2.68], [1.0])
    """
    mean = F.avg_pool2d(cells, 3, 1, 1)
    # few cells reach the threshold: what costs 25 numbers a cell is asked of these alone
    candidates = ((mean >= threshold) & (mean >= F.max_pool2d(mean, 5, 1, 2))).nonzero()
    image, rows, columns = candidates[:, :, None].unbind(1)
    step = torch.arange(25, device=cells.device)
    down, across = step // 5, step % 5
    near, means = (F.pad(values, [2] * 4)[image, rows + down, columns + across] for values in (cells, mean))
    first = (means[:, :12] < means[:, 12:13]).all(1)
    offsets = torch.stack([down, across], 1).to(near) - 2.0
    moved = near @ offsets / near.sum(1, keepdim=True).clamp(min=1e-9)
    return candidates[first], (candidates[:, 1:] + 0.5 + moved)[first], means[first, 12]
