"""Broken procedures: the negatives of the consistency loss (appendix E)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

ColorShift = Callable[[Tensor, torch.Generator], Tensor]


def _uniform(bound: float, generator: torch.Generator) -> float:
    """Random number in [-bound, bound)."""
    return bound * (2 * float(torch.rand((), generator=generator)) - 1)


def _random_index(count: int, generator: torch.Generator) -> int:
    return int(torch.randint(count, (), generator=generator))


def foreign_frame(frames: Tensor, others: Tensor, generator: torch.Generator) -> Tensor:
    """Replace one frame by a frame of another procedure.

    Args:
        frames: uint8 ``(F, 3, H, W)``.
        others: frames of other procedures, uint8 ``(M, 3, H, W)``.
        generator: random generator.
    """
    warped = frames.clone()
    warped[_random_index(len(frames), generator)] = others[_random_index(len(others), generator)]
    return warped


def shuffled_frames(frames: Tensor, generator: torch.Generator) -> Tensor:
    """Shuffle the frames into a different order."""
    count = len(frames)
    order = torch.randperm(count, generator=generator)
    while count > 1 and bool((order == torch.arange(count)).all()):
        order = torch.randperm(count, generator=generator)
    return frames[order]


def shifted_color(frames: Tensor, generator: torch.Generator, max_shift: float = 0.5) -> Tensor:
    """Add a random number to one channel of all frames.

    ProCap Eq. 18

    Args:
        frames: uint8 ``(F, 3, H, W)``.
        generator: random generator.
        max_shift: maximum shift, as a fraction of the range of values; 0.5 in the authors' code, not stated in the
            paper.
    """
    warped = frames.float()
    warped[:, _random_index(3, generator)] += 255 * _uniform(max_shift, generator)
    return warped.round().clamp(0, 255).to(torch.uint8)


def moved_frame(
    frames: Tensor, generator: torch.Generator, degrees: float = 30.0, shift: float = 0.1, zoom: float = 0.1
) -> Tensor:
    """Rotate, translate and scale one frame.

    ProCap Eq. 19
    ProCap Eq. 20

    Args:
        frames: uint8 ``(F, 3, H, W)``.
        generator: random generator.
        degrees: maximum rotation, alpha.
        shift: maximum translation, tau, in half widths of the image.
        zoom: maximum change of scale, mu.
    """
    angle = math.radians(_uniform(degrees, generator))
    shift_x, shift_y, scale = _uniform(shift, generator), _uniform(shift, generator), 1 + _uniform(zoom, generator)
    cos, sin = scale * math.cos(angle), scale * math.sin(angle)
    matrix = torch.tensor([[[cos, -sin, shift_x], [sin, cos, shift_y]]])  # Eq. 19
    index = _random_index(len(frames), generator)
    frame = frames[index : index + 1].float()
    grid = F.affine_grid(matrix, list(frame.shape), align_corners=False)
    moved = F.grid_sample(frame, grid, padding_mode="reflection", align_corners=False)  # Eq. 20
    warped = frames.clone()
    warped[index] = moved[0].round().clamp(0, 255).to(torch.uint8)
    return warped


def warp(frames: Tensor, others: Tensor, generator: torch.Generator, color: ColorShift = shifted_color) -> Tensor:
    """Break a procedure by one of four transformations, sampled uniformly.

    Args:
        frames: uint8 ``(F, 3, H, W)``.
        others: frames of the other procedures of the batch, uint8 ``(M, 3, H, W)``. If there are none,
            :func:`foreign_frame` is left out.
        generator: random generator.
        color: color transformation.
    """
    transformations = (
        lambda: shuffled_frames(frames, generator),
        lambda: color(frames, generator),
        lambda: moved_frame(frames, generator),
        lambda: foreign_frame(frames, others, generator),
    )
    return transformations[_random_index(4 if len(others) else 3, generator)]()
