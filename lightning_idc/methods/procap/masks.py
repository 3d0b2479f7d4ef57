"""Masks of patches for masked reconstruction: ProCap's multi-granularity strategy (appendix D)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lightning_idc.utils.errors import ConfigError

MaskRule = Callable[[tuple[int, int, int], torch.Generator], Tensor]
"""Frames, height and width of a sample's grid to bool ``(F, h, w)``, True where a patch is masked."""

PROBABILITIES = (0.1, 0.7, 0.1, 0.1)
"""Probabilities of entire, random patch, in-block and out-of-block masking."""


def _uniform(low: float, high: float, generator: torch.Generator) -> float:
    return low + (high - low) * float(torch.rand((), generator=generator))


def entire_mask(grid: tuple[int, int, int], generator: torch.Generator) -> Tensor:
    """Mask everything.

    ProCap Eq. 13
    """
    return torch.ones(grid, dtype=torch.bool)


def random_patch_mask(
    grid: tuple[int, int, int], generator: torch.Generator, interval: tuple[float, float] = (0.2, 0.5)
) -> Tensor:
    """Mask each patch with its own probability, drawn uniformly from an interval.

    ProCap Eq. 14
    """
    low, high = interval
    probabilities = low + (high - low) * torch.rand(grid, generator=generator)
    return torch.rand(grid, generator=generator) < probabilities


def random_rectangle(
    height: int, width: int, generator: torch.Generator, area: tuple[float, float] = (0.2, 0.8)
) -> Tensor:
    """Bool ``(h, w)``, True within a rectangle whose fraction of the grid is drawn uniformly from an interval.

    ProCap Eq. 15

    Raises:
        ConfigError: the grid has no rectangle of such an area.
    """
    cells = height * width
    min_cells, max_cells = math.ceil(area[0] * cells - 1e-9), math.floor(area[1] * cells + 1e-9)
    target_area = _uniform(*area, generator) * cells
    # for each height the width closest to the target area; on a small grid all of these may be out of bounds
    closest = [(rows, min(max(round(target_area / rows), 1), width)) for rows in range(1, height + 1)]
    fits = [(rows, columns) for rows, columns in closest if min_cells <= rows * columns <= max_cells] or [
        (rows, columns)
        for rows in range(1, height + 1)
        for columns in range(1, width + 1)
        if min_cells <= rows * columns <= max_cells
    ]
    # prefer rectangles within half a row of the target area
    near = [(rows, columns) for rows, columns in fits if abs(rows * columns - target_area) <= rows / 2 + 1e-9] or fits
    if not near:
        raise ConfigError(f"a grid of {height}x{width} has no rectangle of {area[0]:g} to {area[1]:g} of its area")
    rows, columns = near[int(torch.randint(len(near), (), generator=generator))]
    top_edge = int(torch.randint(height - rows + 1, (), generator=generator))
    left_edge = int(torch.randint(width - columns + 1, (), generator=generator))
    mask = torch.zeros(height, width, dtype=torch.bool)
    mask[top_edge : top_edge + rows, left_edge : left_edge + columns] = True
    return mask


def in_block_mask(grid: tuple[int, int, int], generator: torch.Generator) -> Tensor:
    """Mask one rectangle, the same in all frames.

    ProCap Eq. 16
    """
    return random_rectangle(*grid[1:], generator).expand(grid).clone()


def out_of_block_mask(grid: tuple[int, int, int], generator: torch.Generator) -> Tensor:
    """Mask all but one rectangle, the same in all frames.

    ProCap Eq. 17
    """
    return ~in_block_mask(grid, generator)


RULES: tuple[MaskRule, ...] = (entire_mask, random_patch_mask, in_block_mask, out_of_block_mask)


def multi_granularity_mask(
    grid: tuple[int, int, int],
    generator: torch.Generator,
    probabilities: tuple[float, float, float, float] = PROBABILITIES,
    rules: tuple[MaskRule, ...] = RULES,
) -> Tensor:
    """Mask of one sample by one of four rules.

    Args:
        grid: frames, height and width.
        generator: random numbers.
        probabilities: probabilities of entire, random patch, in-block and out-of-block masking.
        rules: the four masking rules.

    Returns:
        bool ``(F, h, w)``.
    """
    chosen = int(torch.multinomial(torch.tensor(probabilities), 1, generator=generator))
    return rules[chosen](grid, generator)
