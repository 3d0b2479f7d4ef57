"""Single changes in a map of how likely each cell of a grid has changed."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

THRESHOLD = 0.4
"""Mean probability around a change; on the validation split of DeepPCB .3 to .5 do nearly the same."""


def peaks(cells: Tensor, threshold: float = THRESHOLD) -> tuple[Tensor, Tensor]:
    """Cells in which a change lies, and where its centre is.

    A change is three cells a side. It is found once: where the mean over a cell and its eight neighbours is at least
    ``threshold`` and no greater one is within two cells. Of equal ones the first one is it.

    Args:
        cells: probability that each cell has changed, ``(B, h, w)``.
        threshold: mean over a cell and its neighbours from which on they are a change.

    Returns:
        Whether each cell is a peak, bool ``(B, h, w)``, and the centre of mass of all cells within two of each cell,
        ``(B, h, w, 2)`` as y x, in cells from the upper left corner of the grid.

    Example:
        >>> cells = torch.zeros(1, 5, 6)
        >>> cells[0, 1:4, 1:4], cells[0, 1:4, 4] = 1.0, 0.3
        >>> found, centres = peaks(cells)
        >>> found.nonzero().tolist(), [round(value, 2) for value in centres[found][0].tolist()]
        ([[0, 2, 2]], [2.5, 2.68])
    """
    height, width = cells.shape[-2:]
    mean = F.avg_pool2d(cells, 3, 1, 1)
    # every cell among the 25 within two of it, (B, 25, h w)
    near, means = (F.unfold(F.pad(values[:, None], [2] * 4), 5) for values in (cells, mean))
    higher = (means[:, :12] >= means[:, 12:13]).any(1) | (means[:, 13:] > means[:, 12:13]).any(1)
    found = (~higher).view_as(cells) & (mean >= threshold)
    step = torch.arange(25, device=cells.device)
    offsets = torch.stack([step // 5, step % 5], 1) - 2.0
    moved = torch.einsum("bnc,nx->bcx", near, offsets.to(near)) / near.sum(1).clamp(min=1e-9)[..., None]
    axes = [torch.arange(side, device=cells.device) + 0.5 for side in (height, width)]
    middles = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).to(near)
    return found, middles + moved.view(-1, height, width, 2)
