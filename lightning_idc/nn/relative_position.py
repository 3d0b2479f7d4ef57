"""Relative places in attention: a learned bias by where two cells of a grid stand to each other."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

DIRECTED = 4.0
"""How much more a head attends, at first, to what lies in its own direction, as a logit."""


class RelativePositionBias(nn.Module):
    """Learned attention bias by relative position of two cells of a grid, per head.

    Saying where one object stands to another needs relative places; a table of offsets gives them to the first
    layer, where absolute coordinates must first learn to be subtracted. Each head begins with a direction of its own
    and looks at near cells first (`directions`); with several groups, every other head begins with the same cell of
    the other groups (`elsewhere`).

    Args:
        heads: of the attention.
        grid: height and width of the grid.
        groups: tokens per cell; the bias also depends on the two groups.
    """

    def __init__(self, heads: int, grid: tuple[int, int], groups: int = 1) -> None:
        super().__init__()
        height, width = grid
        y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        cells = torch.stack([y.flatten(), x.flatten()], 1)
        offset = cells[:, None] - cells[None]
        index = (offset[..., 0] + height - 1) * (2 * width - 1) + offset[..., 1] + width - 1
        places = (2 * height - 1) * (2 * width - 1)
        group = torch.arange(groups)
        pair = (group[:, None] * groups + group[None]) * places
        # token order: group 0 of all cells, then group 1 of all cells
        whole = pair[:, None, :, None] + index[None, :, None, :]
        self.register_buffer("index", whole.reshape(groups * len(cells), groups * len(cells)), persistent=False)
        table = directions(heads, grid).repeat(groups, groups, 1, 1)
        if groups > 1:
            table[..., 1::2] = elsewhere(groups, grid)[..., None]
        self.table = nn.Parameter(table.flatten(0, 2))

    def forward(self) -> Tensor:
        """``(heads, N, N)``."""
        return self.table[self.index].permute(2, 0, 1)  # type: ignore[index]


def directions(heads: int, grid: tuple[int, int]) -> Tensor:
    """Attention biases that begin with a direction per head, the first one to the right and the others clockwise.

    As ConViT does (d'Ascoli et al. 2021), which begins with one offset per head. Distances are in eighths of the
    longer side, so that grids of the same picture begin alike.

    Args:
        heads: of the attention.
        grid: height and width of the grid.

    Returns:
        ``((2 height - 1) (2 width - 1), heads)``, by offset of the query from the key, row by row.
    """
    height, width = grid
    y, x = torch.meshgrid(torch.arange(1.0 - height, height), torch.arange(1.0 - width, width), indexing="ij")
    distance = torch.hypot(y, x).clamp(min=0.5).flatten()[:, None]
    angle = 2 * math.pi * torch.arange(heads) / heads
    along = -(x.flatten()[:, None] * angle.cos() + y.flatten()[:, None] * angle.sin()) / distance
    return DIRECTED * along - 8 / max(grid) * distance


def elsewhere(groups: int, grid: tuple[int, int]) -> Tensor:
    """Attention bias that begins with the same cell of the other groups.

    What changed in a cell, and what a masked cell holds, stands in the same cell of another frame. An encoder from
    scratch finds it from absolute places only after thousands of steps.

    Args:
        groups: tokens per cell.
        grid: height and width of the grid.

    Returns:
        ``(groups, groups, (2 height - 1) (2 width - 1))``, by the two groups and the offset of their cells.
    """
    height, width = grid
    places = (2 * height - 1) * (2 * width - 1)
    bias = torch.full((groups, groups, places), -DIRECTED / 2)
    # the middle of the offsets is no offset
    bias[~torch.eye(groups, dtype=torch.bool), places // 2] = DIRECTED / 2
    return bias
