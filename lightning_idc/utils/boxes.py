"""clip_box: the only function that fits boxes into an image; box_iou: the overlap of two boxes."""

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


def box_iou(first: Sequence[float], second: Sequence[float]) -> float:
    """Intersection over union of two boxes x1 y1 x2 y2; 0 where they do not overlap."""
    width = min(first[2], second[2]) - max(first[0], second[0])
    height = min(first[3], second[3]) - max(first[1], second[1])
    if width <= 0 or height <= 0:
        return 0.0
    overlap = width * height
    union = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (first, second)) - overlap
    return overlap / union
