"""Random augmentation of the images of a pre-training, on their device, different for each image."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

BRIGHTNESS, SATURATION, NOISE = 80.0, 1.3, 20.0
"""Factors of the strength: maximum shift of brightness, maximum loss of saturation, deviation of the noise."""


def mirrored(images: Tensor, cells: Tensor) -> tuple[Tensor, Tensor]:
    """Images mirrored left to right with a probability of one half, each with its labels.

    Args:
        images: ``(N, ..., W)``.
        cells: labels, ``(N, ..., w)``.

    Example:
        >>> images, cells = mirrored(torch.tensor([[[1, 2]]]), torch.tensor([[[1, 2]]]))
        >>> bool((images == cells).all())
        True
    """
    flip = torch.rand(len(images), device=images.device) < 0.5

    def mirror(values: Tensor) -> Tensor:
        return torch.where(flip.view(-1, *[1] * (values.ndim - 1)), values.flip(-1), values)

    return mirror(images), mirror(cells)


def relit(images: Tensor, strength: float) -> Tensor:
    """Images with random brightness, contrast, saturation, sharpness and noise, like those of different cameras.

    Args:
        images: uint8 ``(..., 3, H, W)``.
        strength: maximum relative change of the contrast, to which the others are proportional; 0 changes nothing.

    Example:
        >>> relit(torch.full((2, 3, 4, 4), 128, dtype=torch.uint8), 0.3).dtype
        torch.uint8
    """
    pixels = images.flatten(0, -4).float()

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(len(pixels), 1, 1, 1, device=pixels.device)

    grey = pixels.mean(1, keepdim=True)
    mean = grey.mean((-2, -1), keepdim=True)
    pixels = grey + (pixels - grey) * (1 + strength * SATURATION * uniform(-1, 0.4))
    pixels = mean + (pixels - mean) * uniform(1 - strength, 1 + strength) + strength * BRIGHTNESS * uniform(-1, 1)
    blurred = F.avg_pool2d(F.pad(pixels, (1, 1, 1, 1), mode="replicate"), 3, 1)
    pixels = torch.lerp(pixels, blurred, (2 * strength * uniform(-1, 1)).clamp(0, 1))
    pixels = pixels + torch.randn_like(pixels) * strength * NOISE * uniform(0, 1)
    return pixels.round().clamp(0, 255).to(torch.uint8).view_as(images)
