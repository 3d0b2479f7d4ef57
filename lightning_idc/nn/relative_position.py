"""Relative position bias: a learned attention bias by the offset of two cells of a grid."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

DIRECTED = 4.0
"""Initial attention logit of cells in the direction of a head."""


class RelativePositionBias(nn.Module):
    """Learned attention bias by relative position of two cells of a grid, per head.

    As in Swin (Liu et al. 2021), a table has one bias per offset and head, so that the first layer need not learn to
    subtract absolute positions. Each head is initialised to attend to near cells in one direction (`directions`); with
    several groups, every other head is initialised to attend to the same cell of the other groups (`same_cell_bias`).

    Args:
        heads: number of attention heads.
        grid: height and width of the grid.
        groups: number of tokens per cell; the bias also depends on the two groups.
    """

    def __init__(self, heads: int, grid: tuple[int, int], groups: int = 1) -> None:
        super().__init__()
        height, width = grid
        y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        cells = torch.stack([y.flatten(), x.flatten()], 1)  # (cells, 2)
        offset = cells[:, None] - cells[None]  # (cells, cells, 2)
        index = (offset[..., 0] + height - 1) * (2 * width - 1) + offset[..., 1] + width - 1
        num_offsets = (2 * height - 1) * (2 * width - 1)
        group = torch.arange(groups)
        group_index = (group[:, None] * groups + group[None]) * num_offsets
        # token order: group 0 of all cells, then group 1 of all cells
        full_index = group_index[:, None, :, None] + index[None, :, None, :]  # (groups, cells, groups, cells)
        self.register_buffer("index", full_index.reshape(groups * len(cells), groups * len(cells)), persistent=False)
        table = directions(heads, grid).repeat(groups, groups, 1, 1)
        if groups > 1:
            table[..., 1::2] = same_cell_bias(groups, grid)[..., None]
        self.table = nn.Parameter(table.flatten(0, 2))

    def forward(self) -> Tensor:
        """Bias ``(heads, N, N)``."""
        return self.table[self.index].permute(2, 0, 1)  # type: ignore[index]


def directions(heads: int, grid: tuple[int, int]) -> Tensor:
    """Initial attention bias with one direction per head, the first to the right and the others clockwise.

    Similar to ConViT (d'Ascoli et al. 2021), whose heads are initialised with one offset each. Distances are in eighths
    of the longer side, so that the bias does not depend on the resolution of the grid.

    Args:
        heads: number of attention heads.
        grid: height and width of the grid.

    Returns:
        Bias ``((2 height - 1) (2 width - 1), heads)`` for each offset of the query from the key, row by row.
    """
    height, width = grid
    y, x = torch.meshgrid(torch.arange(1.0 - height, height), torch.arange(1.0 - width, width), indexing="ij")
    distance = torch.hypot(y, x).clamp(min=0.5).flatten()[:, None]
    angle = 2 * math.pi * torch.arange(heads) / heads
    cosine = -(x.flatten()[:, None] * angle.cos() + y.flatten()[:, None] * angle.sin()) / distance
    return DIRECTED * cosine - 8 / max(grid) * distance


def same_cell_bias(groups: int, grid: tuple[int, int]) -> Tensor:
    """Initial attention bias to the same cell of the other groups.

    A change, or the content of a masked cell, is visible in the same cell of another frame. Without this bias an
    encoder learns it only after thousands of steps.

    Args:
        groups: number of tokens per cell.
        grid: height and width of the grid.

    Returns:
        Bias ``(groups, groups, (2 height - 1) (2 width - 1))`` for the two groups and the offset of their cells.
    """
    height, width = grid
    num_offsets = (2 * height - 1) * (2 * width - 1)
    bias = torch.full((groups, groups, num_offsets), -DIRECTED / 2)
    # the middle of the table is offset 0
    bias[~torch.eye(groups, dtype=torch.bool), num_offsets // 2] = DIRECTED / 2
    return bias
