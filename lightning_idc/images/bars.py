"""Bars: borders of one colour, by which pictures are brought to another aspect; they are cut off again."""

from __future__ import annotations

import torch
from torch import Tensor

TOLERANCE = 12
"""Grey levels that the pixels of a bar may differ from its corner, as lossy files make them."""
SAME_ASPECT = 0.02
"""Aspects that differ by no larger share are the same."""


def content(before: Tensor, after: Tensor, size: tuple[int, int]) -> tuple[slice, slice]:
    """Rows and columns of both images without bars, as many of which are cut off as the wanted aspect asks for.

    Only what is of one colour in both images is a bar, so that no change is lost. Bars of one colour on both sides are
    cut alike where they allow it, else the wider one goes first. Images of the wanted aspect keep their borders.

    Args:
        before: uint8 ``(C, H, W)``.
        after: uint8 ``(C, H, W)``.
        size: height and width, the aspect of which is wanted.

    Example:
        >>> picture = torch.arange(4, dtype=torch.uint8).mul(60).view(1, 2, 2)
        >>> padded = torch.nn.functional.pad(picture, (1, 1), value=255)
        >>> content(padded, padded, (64, 64))
        (slice(0, 2, None), slice(1, 3, None))
    """
    height, width = before.shape[1:]
    aspect = (width / height) / (size[1] / size[0])
    if max(aspect, 1 / aspect) <= 1 + SAME_ASPECT:
        return slice(0, height), slice(0, width)
    pair = torch.stack([before, after]).short()
    if aspect > 1:
        return slice(0, height), _cut(pair, width - round(height * size[1] / size[0]))
    return _cut(pair.mT, height - round(width * size[0] / size[1])), slice(0, width)


def _cut(pair: Tensor, wanted: int) -> slice:
    """Columns of ``(2, C, H, W)`` that stay when up to ``wanted`` of the bars are cut off."""
    first, last = _bar(pair), _bar(pair.flip(-1))
    wanted = min(wanted, first + last)
    alike = bool(((pair[0, :, 0, 0] - pair[0, :, 0, -1]).abs() <= TOLERANCE).all())
    left = min(max(wanted // 2, wanted - last), first)
    if not alike and max(first, last) >= wanted:  # the other side is a background, and no bar
        left = wanted if first > last else 0
    return slice(left, pair.shape[-1] - (wanted - left))


def _bar(pair: Tensor) -> int:
    """Columns from the left that have the colour of the first image's corner throughout."""
    distance = (pair - pair[:1, :, :1, :1]).abs().amax((0, 1, 2))
    return int((distance <= TOLERANCE).cumprod(0).sum())
