"""Scrolling: finds the shift of a view by whole pixels, of the whole picture or of its part under fixed bars.

A change of the page also moves what follows it by whole pixels. Two captures differ by scrolling only if the whole
picture moved, or if a rectangle moved under what is fixed and was cut there: pixels of its first lines are gone.
Nothing is cut where the moved part follows an element that became smaller.
"""

from __future__ import annotations

import numpy as np

MAX_SCROLL = 3
"""Largest shift, in pixels."""
MIN_SCROLLED = 0.5
"""Smallest height and width of the moved part, as a fraction of the picture."""
_SAMPLES = 4000

Shift = tuple[int, int]
"""Pixels to the right and down."""


def estimate_scroll(before: np.ndarray, after: np.ndarray, differs: np.ndarray) -> Shift | None:
    """The shift by up to :data:`MAX_SCROLL` pixels that explains most differing pixels; None if none explains half.

    Args:
        before: uint8 ``(C, H, W)``.
        after: image of the same shape.
        differs: differing pixels, bool ``(H, W)``.
    """
    inside = differs[MAX_SCROLL:-MAX_SCROLL, MAX_SCROLL:-MAX_SCROLL]
    rows, columns = (index + MAX_SCROLL for index in np.nonzero(inside))
    step = max(1, len(rows) // _SAMPLES)
    rows, columns = rows[::step], columns[::step]
    if not len(rows):
        return None
    sides = range(-MAX_SCROLL, MAX_SCROLL + 1)
    values = after[:, rows, columns]
    explained = {
        (dx, dy): float((before[:, rows - dy, columns - dx] == values).all(0).mean())
        for dx in sides
        for dy in sides
        if dx or dy
    }
    shift = max(explained, key=lambda shift: explained[shift])
    return shift if explained[shift] > 0.5 else None


def shifted(image: np.ndarray, shift: Shift, fill: np.ndarray) -> np.ndarray:
    """An image ``(C, H, W)`` moved by a shift, with the values of another one where it has none."""
    (dx, dy), (height, width) = shift, image.shape[1:]
    result = fill.copy()
    result[:, max(0, dy) : height + min(0, dy), max(0, dx) : width + min(0, dx)] = image[
        :, max(0, -dy) : height - max(0, dy), max(0, -dx) : width - max(0, dx)
    ]
    return result


def is_large(moved: np.ndarray) -> bool:
    """Whether moved pixels ``(H, W)`` span a large part of the picture: a single element that moved is a change."""
    extent = [np.flatnonzero(moved.any(axis)) for axis in (1, 0)]
    sides = zip(extent, moved.shape, strict=True)
    return all(len(lines) > 0 and lines[-1] - lines[0] + 1 >= MIN_SCROLLED * side for lines, side in sides)


def is_under_fixed_parts(
    image: np.ndarray, moved: np.ndarray, fixed: np.ndarray, shift: Shift, must_be_cut: bool
) -> bool:
    """Whether the moved pixels are a view that was scrolled under fixed parts of the page.

    Args:
        image: the image before the content moved up or to the left, uint8 ``(C, H, W)``.
        moved: differing pixels, all explained by the shift, bool ``(H, W)``.
        fixed: equal pixels that the shift would change, bool ``(H, W)``.
        shift: shift along one axis.
        must_be_cut: whether the moved part must be cut where it moves to; otherwise an element may have moved it.
    """
    if shift[0] and shift[1]:
        return False
    size = abs(shift[0] or shift[1])
    if shift[0]:
        image, moved, fixed = image.swapaxes(1, 2), moved.T, fixed.T
    lines, columns = (np.flatnonzero(moved.any(axis)) for axis in (1, 0))
    across = slice(columns[0], columns[-1] + 1)
    if fixed[lines[0] : lines[-1] + 1, across].any():
        return False
    if not must_be_cut:
        return True
    above = np.flatnonzero(fixed[: lines[0], across].any(1))
    start = int(above[-1]) + 1 if len(above) else 0
    strip = image[:, start : start + size, across]
    has_ink = np.zeros(strip.shape[1:], bool)
    has_ink[:, 1:] = (strip[:, :, 1:] != strip[:, :, :-1]).any(0)
    return bool((moved[start : start + size, across] & has_ink).any())
