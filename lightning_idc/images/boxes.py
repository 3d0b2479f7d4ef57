"""clip_box: the only function that fits boxes into an image."""

from __future__ import annotations

from collections.abc import Sequence

PixelBox = tuple[int, int, int, int]
"""x1 y1 x2 y2 in pixels, the last two exclusive."""


def clip_box(box: Sequence[float], size: tuple[int, int]) -> PixelBox | None:
    """Round a box to whole pixels and clip it to an image; None if no pixel of it lies in the image.

    Args:
        box: x1 y1 x2 y2 in pixels.
        size: Width and height of the image.

    Example:
        >>> clip_box((-3, 4, 20, 12), (16, 16)), clip_box((18, 0, 16, 4), (16, 16))
        ((0, 4, 16, 12), None)
    """
    (width, height), (x1, y1, x2, y2) = size, map(round, box)
    left, top, right, bottom = max(0, x1), max(0, y1), min(width, x2), min(height, y2)
    return (left, top, right, bottom) if left < right and top < bottom else None
