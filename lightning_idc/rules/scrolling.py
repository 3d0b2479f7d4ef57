"""Scrolling: finds the shift of a view by whole pixels, of the whole picture or of its part under fixed bars.

A change of the page also moves what follows it by whole pixels. Two captures differ by scrolling only if the whole
picture moved, or if each difference belongs to one of two layers: content that moved by one shift, and fixed parts that
did not. Where fixed parts are translucent, as shadows and the edges of letters are, both layers show.

Fixed parts may lie anywhere, with one exception. Pages flow downwards, so an element that grows or moves leaves what
is above it and moves what is below, and a box that shrinks or moves leaves what comes after it. Where unmoved ink lies
there for most of what moved, the content must have been cut: some of its ink is gone under a fixed part, or came from
there.
"""

from __future__ import annotations

import numpy as np

from lightning_idc.rules.windows import window_max

MAX_SCROLL = 3
"""Largest shift, in pixels."""
MIN_SCROLLED = 0.5
"""Smallest height and width of the part that moved under fixed ones, as a fraction of the picture."""
MAX_BLENDED, MIN_BLENDED = 16, 0.8
"""Grey levels by which a pixel that shows both layers may lie outside of their values, and smallest fraction of such
pixels that do not lie farther outside."""
BLENDED_RADIUS = 24
"""Largest distance of such pixels from the ink of fixed parts, in pixels."""
MIN_FOLLOWED = 0.5
"""Smallest fraction of the moved pixels that have fixed ink before or after them, where the content must be cut."""
MIN_CUT = 16
"""Smallest contrast of ink that is cut, in grey levels."""
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


def extent(pixels: np.ndarray) -> tuple[float, float]:
    """Height and width that pixels ``(H, W)`` span, as fractions of the picture."""
    lines = (np.flatnonzero(pixels.any(axis)) for axis in (1, 0))
    height, width = (
        (line[-1] - line[0] + 1) / side if len(line) else 0.0 for line, side in zip(lines, pixels.shape, strict=True)
    )
    return float(height), float(width)


def is_under_fixed_parts(before: np.ndarray, after: np.ndarray, shift: Shift, must_be_cut: bool) -> bool:
    """Whether two images are one view that was scrolled under fixed parts of the page.

    Args:
        before: the image before the content moved up or to the left, uint8 ``(C, H, W)``.
        after: the image after it.
        shift: shift along one axis.
        must_be_cut: whether content must be cut where an element may have moved it.
    """
    if shift[0] and shift[1]:
        return False
    is_sideways, size = bool(shift[0]), abs(shift[0] or shift[1])
    if is_sideways:
        before, after = before.swapaxes(1, 2), after.swapaxes(1, 2)
    expected = shifted(before, (0, -size), after)
    differs, unexpected = (before != after).any(0), (expected != after).any(0)
    moved, fixed = differs & ~unexpected, unexpected & ~differs
    if min(extent(moved)) < MIN_SCROLLED or not _is_blended(before, after, expected, fixed, differs & unexpected):
        return False
    if not must_be_cut:
        return True
    if _has_fixed_above(moved[::-1], fixed[::-1]) and not _is_cut(after[:, ::-1], before[:, ::-1], size):
        return False
    # what stays above precedes the content in the flow of a page; at the side it is a side bar
    return is_sideways or not _has_fixed_above(moved, fixed) or _is_cut(before, after, size)


def _is_blended(
    before: np.ndarray, after: np.ndarray, expected: np.ndarray, fixed: np.ndarray, both: np.ndarray
) -> bool:
    """Whether pixels that neither moved nor stayed may show both layers: near fixed ones, and between both."""
    if not both.any():
        return True
    value, *layers = (image[:, both].astype(np.int16) for image in (after, before, expected))
    low, high = np.minimum(*layers) - MAX_BLENDED, np.maximum(*layers) + MAX_BLENDED
    is_near = window_max(fixed.astype(np.uint8), BLENDED_RADIUS) > 0
    return bool(is_near[both].all() and ((value >= low) & (value <= high)).all(0).mean() >= MIN_BLENDED)


def _has_fixed_above(moved: np.ndarray, fixed: np.ndarray) -> bool:
    """Whether most of what moved lies in columns with fixed ink above all that moved there."""
    is_above = np.arange(len(moved))[:, None] < moved.argmax(0)
    return float((moved & (fixed & is_above).any(0)).sum()) >= MIN_FOLLOWED * moved.sum()


def _is_cut(before: np.ndarray, after: np.ndarray, size: int) -> bool:
    """Whether ink of content that moved up by ``size`` pixels is gone."""
    before, after = before.astype(np.int16), after.astype(np.int16)
    is_gone = np.abs(before[:, size:] - after[:, :-size]).max(0) > MIN_CUT
    differs = (before != after).any(0)[size:]
    is_ink = np.zeros(differs.shape, bool)
    is_ink[:, 1:] = (np.abs(np.diff(before[:, size:], axis=2)) > MIN_CUT).any(0)
    return bool((is_gone & differs & is_ink).any())
