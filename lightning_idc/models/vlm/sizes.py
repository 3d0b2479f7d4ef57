"""Pairs of different sizes: scaled to a range of pixel counts, and padded to fit into one tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor, nn

from lightning_idc.images.resize import resize
from lightning_idc.images.types import PairSample

SIZES = "sizes"
"""Key of the model inputs of a batch: height and width of each pair before padding."""


def scale_to_pixels(sample: PairSample, min_pixels: int | None, max_pixels: int | None) -> PairSample:
    """Scale a pair with its aspect ratio to between ``min_pixels`` and ``max_pixels`` pixels per image."""
    _, height, width = sample.before.shape
    size = fitting_size(height, width, min_pixels, max_pixels)
    if size == (height, width):
        return sample
    before, after = (resize(image, size, "bicubic") for image in (sample.before, sample.after))
    return replace(sample, before=before, after=after, boxes=None, masks=None)


def fitting_size(height: int, width: int, min_pixels: int | None, max_pixels: int | None) -> tuple[int, int]:
    """Height and width with the same aspect ratio and between ``min_pixels`` and ``max_pixels`` pixels.

    Example:
        >>> fitting_size(600, 800, None, 120_000)
        (300, 400)
    """
    scale = 1.0
    if min_pixels is not None:
        scale = max(scale, math.sqrt(min_pixels / (height * width)))
    if max_pixels is not None:
        scale = min(scale, math.sqrt(max_pixels / (height * width)))
    if scale == 1.0:
        return height, width
    round_side = math.ceil if scale > 1 else math.floor
    return max(1, round_side(height * scale)), max(1, round_side(width * scale))


def pad_to_largest(samples: Sequence[PairSample]) -> list[PairSample]:
    """Pad pairs with black at the right and the bottom to the largest height and width among them."""
    height, width = (max(sample.before.shape[axis] for sample in samples) for axis in (1, 2))

    def pad(image: Tensor) -> Tensor:
        return nn.functional.pad(image, (0, width - image.shape[2], 0, height - image.shape[1]))

    return [
        sample
        if sample.before.shape[1:] == (height, width)
        else replace(sample, before=pad(sample.before), after=pad(sample.after))
        for sample in samples
    ]
