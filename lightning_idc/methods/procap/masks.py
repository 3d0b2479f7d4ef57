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
"""Of entire, random patch, in-block and out-of-block masking."""


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
    """Mask each patch with a probability of its own, drawn evenly from an interval.

    ProCap Eq. 14
    """
    low, high = interval
    chances = low + (high - low) * torch.rand(grid, generator=generator)
    return torch.rand(grid, generator=generator) < chances


def random_rectangle(
    height: int, width: int, generator: torch.Generator, area: tuple[float, float] = (0.2, 0.8)
) -> Tensor:
    """Bool ``(h, w)``, True within a rectangle whose share of the grid is drawn evenly from an interval.

    ProCap Eq. 15

    Raises:
        ConfigError: the grid has no rectangle of such a share.
    """
    cells = height * width
    least, most = math.ceil(area[0] * cells - 1e-9), math.floor(area[1] * cells + 1e-9)
    wanted = _uniform(*area, generator) * cells
    # of each height the width that comes closest to the wanted area; on a small grid all of these may be out of bounds
    closest = [(rows, min(max(round(wanted / rows), 1), width)) for rows in range(1, height + 1)]
    fits = [(rows, columns) for rows, columns in closest if least <= rows * columns <= most] or [
        (rows, columns)
        for rows in range(1, height + 1)
        for columns in range(1, width + 1)
        if least <= rows * columns <= most
    ]
    # widths at the border of the grid may be far from the wanted area: half a row or column is near enough
    near = [(rows, columns) for rows, columns in fits if abs(rows * columns - wanted) <= rows / 2 + 1e-9] or fits
    if not near:
        raise ConfigError(f"a grid of {height}x{width} has no rectangle of {area[0]:g} to {area[1]:g} of its area")
    rows, columns = near[int(torch.randint(len(near), (), generator=generator))]
    top = int(torch.randint(height - rows + 1, (), generator=generator))
    left = int(torch.randint(width - columns + 1, (), generator=generator))
    mask = torch.zeros(height, width, dtype=torch.bool)
    mask[top : top + rows, left : left + columns] = True
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
        generator: of all random choices.
        probabilities: of entire, random patch, in-block and out-of-block masking.
        rules: these four.

    Returns:
        bool ``(F, h, w)``.
    """
    chosen = int(torch.multinomial(torch.tensor(probabilities), 1, generator=generator))
    return rules[chosen](grid, generator)
