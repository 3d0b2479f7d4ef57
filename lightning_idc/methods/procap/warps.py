"""Procedures whose order in time is broken: the negatives of the consistency loss (appendix E)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

ColorShift = Callable[[Tensor, torch.Generator], Tensor]


def _uniform(reach: float, generator: torch.Generator) -> float:
    return reach * (2 * float(torch.rand((), generator=generator)) - 1)


def _pick(count: int, generator: torch.Generator) -> int:
    return int(torch.randint(count, (), generator=generator))


def foreign_frame(frames: Tensor, others: Tensor, generator: torch.Generator) -> Tensor:
    """Put a frame of another procedure in the place of one of these.

    Args:
        frames: uint8 ``(F, 3, H, W)``.
        others: frames to take from, uint8 ``(M, 3, H, W)``.
        generator: of the choice.
    """
    warped = frames.clone()
    warped[_pick(len(frames), generator)] = others[_pick(len(others), generator)]
    return warped


def shuffled_frames(frames: Tensor, generator: torch.Generator) -> Tensor:
    """The same frames in another order."""
    count = len(frames)
    order = torch.randperm(count, generator=generator)
    while count > 1 and bool((order == torch.arange(count)).all()):
        order = torch.randperm(count, generator=generator)
    return frames[order]


def shifted_color(frames: Tensor, generator: torch.Generator, reach: float = 0.5) -> Tensor:
    """One channel of all frames brighter or darker by one number.

    ProCap Eq. 18

    Args:
        frames: uint8 ``(F, 3, H, W)``.
        generator: of the choices.
        reach: greatest shift, as a share of the range of values; the paper gives none, the code 0.5.
    """
    warped = frames.float()
    warped[:, _pick(3, generator)] += 255 * _uniform(reach, generator)
    return warped.round().clamp(0, 255).to(torch.uint8)


def moved_frame(
    frames: Tensor, generator: torch.Generator, degrees: float = 30.0, shift: float = 0.1, zoom: float = 0.1
) -> Tensor:
    """One frame turned, moved and scaled.

    ProCap Eq. 19
    ProCap Eq. 20

    Args:
        frames: uint8 ``(F, 3, H, W)``.
        generator: of the choices.
        degrees: greatest turn, alpha.
        shift: greatest move, tau, in half widths of the image.
        zoom: greatest change of scale, mu.
    """
    angle = math.radians(_uniform(degrees, generator))
    right, down, scale = _uniform(shift, generator), _uniform(shift, generator), 1 + _uniform(zoom, generator)
    cos, sin = scale * math.cos(angle), scale * math.sin(angle)
    matrix = torch.tensor([[[cos, -sin, right], [sin, cos, down]]])
    chosen = _pick(len(frames), generator)
    frame = frames[chosen : chosen + 1].float()
    grid = F.affine_grid(matrix, list(frame.shape), align_corners=False)
    moved = F.grid_sample(frame, grid, padding_mode="reflection", align_corners=False)
    warped = frames.clone()
    warped[chosen] = moved[0].round().clamp(0, 255).to(torch.uint8)
    return warped


def warp(frames: Tensor, others: Tensor, generator: torch.Generator, color: ColorShift = shifted_color) -> Tensor:
    """Break the order of a procedure in one of the four ways, each as likely as another.

    Args:
        frames: uint8 ``(F, 3, H, W)``.
        others: frames of the other procedures of the batch, uint8 ``(M, 3, H, W)``; with none, the other three ways.
        generator: of all random choices.
        color: the third way.
    """
    ways = (
        lambda: shuffled_frames(frames, generator),
        lambda: color(frames, generator),
        lambda: moved_frame(frames, generator),
        lambda: foreign_frame(frames, others, generator),
    )
    return ways[_pick(4 if len(others) else 3, generator)]()
