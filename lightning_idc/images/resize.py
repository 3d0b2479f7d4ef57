"""Resize uint8 images with the antialiasing of Pillow."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Interpolation = Literal["bilinear", "bicubic"]
_MAX_VALUES = 1 << 20  # values converted to float at a time, 4 MB


def resize(image: Tensor, size: tuple[int, int], interpolation: Interpolation = "bilinear") -> Tensor:
    """Resize uint8 ``(C, H, W)`` to height and width, without preserving the aspect ratio."""
    if tuple(image.shape[1:]) == tuple(size):
        return image
    # bicubic overshoots, and Pillow clips between its two passes: stay in uint8 to match it
    pixels = image if interpolation == "bicubic" else _resize_width(image, size[1]).float()
    return _interpolate(pixels, size, interpolation).round().clamp(0, 255).to(torch.uint8)


def _resize_width(image: Tensor, width: int) -> Tensor:
    """Resize a large image to a width, a few rows at a time.

    Converting all pixels to float at once would allocate new memory for every image, which is slower than resizing.
    """
    if image.numel() <= _MAX_VALUES:
        return image
    rows = max(1, _MAX_VALUES // image[:, 0].numel())
    parts = (image[:, start : start + rows] for start in range(0, image.shape[1], rows))
    return torch.cat([_interpolate(part.float(), (part.shape[1], width), "bilinear") for part in parts], 1)


def _interpolate(image: Tensor, size: tuple[int, int], interpolation: Interpolation) -> Tensor:
    return F.interpolate(image[None], size=size, mode=interpolation, antialias=True, align_corners=False)[0]
