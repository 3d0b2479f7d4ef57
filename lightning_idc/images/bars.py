"""Crop letterbox bars: uniform borders that pad an image to another aspect ratio."""

from __future__ import annotations

import torch
from torch import Tensor

TOLERANCE = 12
"""Largest difference, in grey levels, between a pixel of a bar and its corner; lossy compression causes some."""
SAME_ASPECT = 0.02
"""Relative difference up to which two aspect ratios count as equal."""


def content_window(before: Tensor, after: Tensor, size: tuple[int, int]) -> tuple[slice, slice]:
    """Find the rows and columns of both images that remain after bars are cropped to reach a target aspect ratio.

    A bar has the same uniform colour in both images, so that no change is lost. Equally coloured bars on opposite sides
    are cropped equally if both are wide enough; otherwise only the wider one is. Images that already have the target
    aspect ratio are not cropped.

    Args:
        before: uint8 ``(C, H, W)``.
        after: uint8 ``(C, H, W)``.
        size: height and width that define the target aspect ratio.

    Example:
        >>> image = torch.arange(4, dtype=torch.uint8).mul(60).view(1, 2, 2)
        >>> padded = torch.nn.functional.pad(image, (1, 1), value=255)
        >>> content_window(padded, padded, (64, 64))
        (slice(0, 2, None), slice(1, 3, None))
    """
    height, width = before.shape[1:]
    aspect = (width / height) / (size[1] / size[0])
    if max(aspect, 1 / aspect) <= 1 + SAME_ASPECT:
        return slice(0, height), slice(0, width)
    pair = torch.stack([before, after]).short()
    if aspect > 1:
        return slice(0, height), _crop_columns(pair, width - round(height * size[1] / size[0]))
    return _crop_columns(pair.mT, height - round(width * size[0] / size[1])), slice(0, width)


def _crop_columns(pair: Tensor, excess: int) -> slice:
    """Find the columns of ``(2, C, H, W)`` that remain after up to ``excess`` columns of bars are cropped."""
    first, last = _bar_width(pair), _bar_width(pair.flip(-1))
    excess = min(excess, first + last)
    same_colour = bool(((pair[0, :, 0, 0] - pair[0, :, 0, -1]).abs() <= TOLERANCE).all())
    left = min(max(excess // 2, excess - last), first)
    if not same_colour and max(first, last) >= excess:  # the other side is background rather than a bar
        left = excess if first > last else 0
    return slice(left, pair.shape[-1] - (excess - left))


def _bar_width(pair: Tensor) -> int:
    """Count the leading columns whose pixels all have the colour of the first image's top left corner."""
    distance = (pair - pair[:1, :, :1, :1]).abs().amax((0, 1, 2))
    return int((distance <= TOLERANCE).cumprod(0).sum())
