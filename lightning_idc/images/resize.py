"""resize: uint8 images to another size, antialiased as Pillow does."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Interpolation = Literal["bilinear", "bicubic"]
_MAX_VALUES = 1 << 20  # of an image that are floats at one time, 4 MB


def resize(image: Tensor, size: tuple[int, int], interpolation: Interpolation = "bilinear") -> Tensor:
    """Resize uint8 ``(C, H, W)`` to height and width; the aspect is not kept."""
    if tuple(image.shape[1:]) == tuple(size):
        return image
    # bytes throughout where values overshoot, since Pillow cuts them off between its two passes
    pixels = image if interpolation == "bicubic" else _narrow(image, size[1]).float()
    return _interpolate(pixels, size, interpolation).round().clamp(0, 255).to(torch.uint8)


def _narrow(image: Tensor, width: int) -> Tensor:
    """A large image scaled to a width some rows at a time.

    Floats of all its pixels would be memory that is new for every image, which takes longer than to scale them.
    """
    if image.numel() <= _MAX_VALUES:
        return image
    rows = max(1, _MAX_VALUES // image[:, 0].numel())
    parts = (image[:, start : start + rows] for start in range(0, image.shape[1], rows))
    return torch.cat([_interpolate(part.float(), (part.shape[1], width), "bilinear") for part in parts], 1)


def _interpolate(image: Tensor, size: tuple[int, int], interpolation: Interpolation) -> Tensor:
    return F.interpolate(image[None], size=size, mode=interpolation, antialias=True, align_corners=False)[0]
