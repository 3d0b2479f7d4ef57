"""Draw pairs for vision-language models: red boxes, and both images side by side."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_idc.images.resize import resize

BAR, LINE, MARGIN = 20, 3, 5
"""Widths of the black bar (section 18.1) and of the red line, distance of line and box (scripts); pixels."""


def draw_box(image: Tensor, box: Sequence[float], margin: int = MARGIN) -> Tensor:
    """Draw a red frame, 3 pixels wide, around a box on a copy of an image; clipped at the border.

    Args:
        image: uint8 ``(3, H, W)``.
        box: x1 y1 x2 y2 in pixels.
        margin: distance between frame and box in pixels.
    """
    height, width = image.shape[1:]
    x1, y1 = max(int(box[0]) - margin, 0), max(int(box[1]) - margin, 0)
    x2, y2 = min(round(box[2]) + margin, width), min(round(box[3]) + margin, height)
    framed = image.clone()
    red = image.new_tensor([255, 0, 0])[:, None, None]
    framed[:, y1 : y1 + LINE, x1:x2] = red
    framed[:, max(y2 - LINE, 0) : y2, x1:x2] = red
    framed[:, y1:y2, x1 : x1 + LINE] = red
    framed[:, y1:y2, max(x2 - LINE, 0) : x2] = red
    return framed


def side_by_side(before: Tensor, after: Tensor) -> Tensor:
    """Concatenate both images horizontally, with a black bar of 20 pixels between them (section 18.1).

    Args:
        before: uint8 ``(3, H, W)``.
        after: uint8 ``(3, H, W)``; resized to the size of ``before`` if different, as the scripts do.
    """
    after = same_size(before, after)
    return torch.cat([before, before.new_zeros(3, before.shape[1], BAR), after], 2)


def same_size(before: Tensor, after: Tensor) -> Tensor:
    """Resize the second image of a pair to the size of the first, uint8 ``(3, H, W)``."""
    return after if after.shape == before.shape else resize(after, (before.shape[1], before.shape[2]))
