"""Masks of patches for masked reconstruction: ProCap's multi-granularity strategy (appendix D)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lightning_idc.utils.errors import ConfigError

MaskRule = Callable[[tuple[int, int, int], torch.Generator], Tensor]
"""Function from a grid (F, h, w) and a generator to a mask, bool ``(F, h, w)``, True at masked patches."""

PROBABILITIES = (0.1, 0.7, 0.1, 0.1)
"""Probabilities of entire, random patch, in-block and out-of-block masking."""


def _uniform(low: float, high: float, generator: torch.Generator) -> float:
    return low + (high - low) * float(torch.rand((), generator=generator))


def entire_mask(grid: tuple[int, int, int], generator: torch.Generator) -> Tensor:
    """Mask all patches.

    ProCap Eq. 13
    """
    return torch.ones(grid, dtype=torch.bool)


def random_patch_mask(
    grid: tuple[int, int, int], generator: torch.Generator, interval: tuple[float, float] = (0.2, 0.5)
) -> Tensor:
    """Mask each patch with a separate probability, which is uniform in an interval.

    ProCap Eq. 14
    """
    low, high = interval
    probabilities = low + (high - low) * torch.rand(grid, generator=generator)
    return torch.rand(grid, generator=generator) < probabilities


def random_rectangle(
    height: int, width: int, generator: torch.Generator, area: tuple[float, float] = (0.2, 0.8)
) -> Tensor:
    """Mask of a random rectangle, bool ``(h, w)``, True inside; its fraction of the grid is uniform in an interval.

    ProCap Eq. 15

    Args:
        height: h, height of the grid.
        width: w, width of the grid.
        generator: random generator.
        area: smallest and largest fraction of the grid.

    Raises:
        ConfigError: no rectangle of the grid has such an area.
    """
    cells = height * width
    min_cells, max_cells = math.ceil(area[0] * cells - 1e-9), math.floor(area[1] * cells + 1e-9)
    target_area = _uniform(*area, generator) * cells
    # for each height, the width closest to the target area; on a small grid all of these may be out of bounds
    closest = [(rows, min(max(round(target_area / rows), 1), width)) for rows in range(1, height + 1)]
    valid = [(rows, columns) for rows, columns in closest if min_cells <= rows * columns <= max_cells] or [
        (rows, columns)
        for rows in range(1, height + 1)
        for columns in range(1, width + 1)
        if min_cells <= rows * columns <= max_cells
    ]
    # rectangles within half a row of the target area are preferred
    preferred = [(rows, columns) for rows, columns in valid if abs(rows * columns - target_area) <= rows / 2 + 1e-9]
    candidates = preferred or valid
    if not candidates:
        raise ConfigError(f"a grid of {height}x{width} has no rectangle of {area[0]:g} to {area[1]:g} of its area")
    rows, columns = candidates[int(torch.randint(len(candidates), (), generator=generator))]
    top_edge = int(torch.randint(height - rows + 1, (), generator=generator))
    left_edge = int(torch.randint(width - columns + 1, (), generator=generator))
    mask = torch.zeros(height, width, dtype=torch.bool)
    mask[top_edge : top_edge + rows, left_edge : left_edge + columns] = True
    return mask


def in_block_mask(grid: tuple[int, int, int], generator: torch.Generator) -> Tensor:
    """Mask one rectangle, at the same position in all frames.

    ProCap Eq. 16
    """
    return random_rectangle(*grid[1:], generator).expand(grid).clone()


def out_of_block_mask(grid: tuple[int, int, int], generator: torch.Generator) -> Tensor:
    """Mask all patches outside of one rectangle, which has the same position in all frames.

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
    """Mask of one sample by one of four rules, bool ``(F, h, w)``.

    Args:
        grid: F, h and w.
        generator: random generator.
        probabilities: probabilities of entire, random patch, in-block and out-of-block masking.
        rules: the four masking rules.
    """
    rule = int(torch.multinomial(torch.tensor(probabilities), 1, generator=generator))
    return rules[rule](grid, generator)
