"""Peaks in a map of change probabilities of the cells of a grid."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

THRESHOLD = 0.4
"""Minimum mean probability around a change; .3 to .5 are nearly equal on the validation split of DeepPCB."""


def peaks(cells: Tensor, threshold: float = THRESHOLD) -> tuple[Tensor, Tensor, Tensor]:
    """Positions, centres and mean probabilities of changes.

    A change is a cell whose mean with its eight neighbours is at least ``threshold`` and the maximum within two cells;
    the first among equals.

    Args:
        cells: probability that each cell has changed, ``(B, h, w)``.
        threshold: minimum mean over a cell and its neighbours.

    Returns:
        Image, row and column of each peak, int64 ``(P, 3)`` in that order; the centre of mass of the cells within two
        of it, ``(P, 2)`` as y x, in cells from the upper left corner of the grid; and its mean, ``(P,)``.

    Example:
        >>> cells = torch.zeros(1, 5, 6)
        >>> cells[0, 1:4, 1:4], cells[0, 1:4, 4] = 1.0, 0.3
        >>> cells_of_peaks, centres, means = peaks(cells)
        >>> cells_of_peaks.tolist(), [round(value, 2) for value in centres[0].tolist()], means.tolist()
        ([[0, 2, 2]], [2.5, 2.68], [1.0])
    """
    mean = F.avg_pool2d(cells, 3, 1, 1)
    # few cells reach the threshold, so that windows of 25 cells are read for these only
    candidates = ((mean >= threshold) & (mean >= F.max_pool2d(mean, 5, 1, 2))).nonzero()
    image, rows, columns = candidates[:, :, None].unbind(1)
    step = torch.arange(25, device=cells.device)
    down, across = step // 5, step % 5
    near, means = (F.pad(values, [2] * 4)[image, rows + down, columns + across] for values in (cells, mean))
    first = (means[:, :12] < means[:, 12:13]).all(1)
    offsets = torch.stack([down, across], 1).to(near) - 2.0
    moved = near @ offsets / near.sum(1, keepdim=True).clamp(min=1e-9)
    return candidates[first], (candidates[:, 1:] + 0.5 + moved)[first], means[first, 12]
