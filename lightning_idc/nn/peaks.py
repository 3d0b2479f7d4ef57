"""Peaks of a change probability map: non-maximum suppression with centres of mass."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

THRESHOLD = 0.4
"""Minimum mean probability around a change; 0.3 to 0.5 score nearly equal on the validation split of DeepPCB."""


def peaks(cells: Tensor, threshold: float = THRESHOLD) -> tuple[Tensor, Tensor, Tensor]:
    """Positions, centres and mean probabilities of changes.

    A change is a cell whose mean over itself and its eight neighbours is at least ``threshold`` and the maximum of the
    5 x 5 cells around it, or the first of equal maxima.

    Args:
        cells: change probability of each cell, ``(B, h, w)``.
        threshold: minimum mean over a cell and its neighbours.

    Returns:
        Image, row and column of each peak, int64 ``(P, 3)``, sorted by them; the centre of mass y x of the 5 x 5 cells
        around it, ``(P, 2)`` in cells from the upper left corner of the grid; and its mean, ``(P,)``.

    Example:
        >>> cells = torch.zeros(1, 5, 6)
        >>> cells[0, 1:4, 1:4], cells[0, 1:4, 4] = 1.0, 0.3
        >>> cells_of_peaks, centres, means = peaks(cells)
        >>> cells_of_peaks.tolist(), [round(value, 2) for value in centres[0].tolist()], means.tolist()
        ([[0, 2, 2]], [2.5, 2.68], [1.0])
    """
    mean = F.avg_pool2d(cells, 3, 1, 1)
    # windows of 5 x 5 cells are read for these candidates only, as few cells reach the threshold
    candidates = ((mean >= threshold) & (mean >= F.max_pool2d(mean, 5, 1, 2))).nonzero()  # (P', 3)
    image, rows, columns = candidates[:, :, None].unbind(1)
    index = torch.arange(25, device=cells.device)
    dy, dx = index // 5, index % 5
    windows, means = (F.pad(values, [2] * 4)[image, rows + dy, columns + dx] for values in (cells, mean))  # (P', 25)
    is_first = (means[:, :12] < means[:, 12:13]).all(1)
    offsets = torch.stack([dy, dx], 1).to(windows) - 2.0  # (25, 2)
    mean_offset = windows @ offsets / windows.sum(1, keepdim=True).clamp(min=1e-9)
    return candidates[is_first], (candidates[:, 1:] + 0.5 + mean_offset)[is_first], means[is_first, 12]
