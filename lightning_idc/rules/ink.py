"""Ink: tells whether every word of one picture stands with as much ink at the same position in another.

1. :func:`_words` groups the edges of both pictures: a word, an icon or a frame is one group.
2. The ink of a group is the distance of its pixels from the ground around them, per channel.
3. :func:`_is_in_place` compares the ink of both pictures in total, column by column and row by row. Other hinting makes
   letters a pixel taller and strokes sharper, and moves columns by less than a pixel. Another text, color, weight,
   size or spacing changes the total or the columns, and what moved by whole pixels is drawn as before.

``C`` is the number of channels; ``H``, ``W`` and ``h``, ``w`` are the height and width of a picture and of a group.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy import ndimage

from lightning_idc.rules.windows import window_max, window_min

MIN_CONTRAST = 20
"""Smallest contrast of an edge, in grey levels."""
MAX_GAP = 2
"""Largest distance of the edges of two letters of a word, in pixels."""
MIN_INK = 600
"""Smallest ink of a group that is compared, in grey levels times pixels: between one and two black pixels."""
MAX_INK, MAX_THIN_INK = 0.3, 0.6
"""Largest difference of the ink of a group, as a fraction of the larger one; and that of a thin one."""
MAX_SIDEWAYS, MAX_UPWARDS = 0.8, 1.8
"""Largest displacements of the columns and of the rows of a group, in pixels."""
MIN_CORRELATION = 0.97
"""Smallest correlation of the ink of the columns of a group."""
SMOOTHING = 1.5
"""Standard deviation of the Gaussian that smooths sums of ink, in pixels."""
MAX_DISPLACEMENT = 4
"""Largest displacement that is measured, in pixels."""
THIN = 7
"""Largest height of a thin group, such as a dash or an equals sign, whose strokes hinting doubles or halves."""
MAX_ROUNDING = 2
"""Largest difference of the ink of a word that moved by whole pixels, in grey levels."""
MIN_CUT = 8
"""Smallest height of a group at the upper or lower edge of the picture, which hinting moves in or out of it."""
EVEN_RADIUS, MAX_IN_EVEN = 2, 0.01
"""Largest fraction of the differing pixels whose window of this radius is even in one of the pictures."""


def is_same_ink(before: np.ndarray, after: np.ndarray) -> bool:
    """Whether two pictures differ at edges only, and every group of edges has the same ink at the same position.

    Args:
        before: uint8 ``(C, H, W)``.
        after: picture of the same shape.
    """
    differs = (before != after).any(0)
    even = _is_even(before) | _is_even(after)
    if (differs & even).sum() > MAX_IN_EVEN * differs.sum():
        return False
    height = before.shape[1]
    for rows, columns, word, edges in _words(before, after, differs):
        is_cut = rows.start <= 1 or rows.stop >= height - 1
        if is_cut and len(word) < MIN_CUT:
            continue
        ground = word & ~edges
        inks = [_ink(picture[:, rows, columns], word, ground if ground.any() else word) for picture in (before, after)]
        if not _is_in_place(inks[0], inks[1], is_cut):
            return False
    return True


def _is_even(picture: np.ndarray) -> np.ndarray:
    even: np.ndarray = (window_max(picture, EVEN_RADIUS) == window_min(picture, EVEN_RADIUS)).all(0)
    return even


def _words(
    before: np.ndarray, after: np.ndarray, differs: np.ndarray
) -> Iterator[tuple[slice, slice, np.ndarray, np.ndarray]]:
    """Rows, columns, pixels ``(h, w)`` and edges ``(h, w)`` of the groups of edges that differ."""
    contrasts = [window_max(picture, 1) - window_min(picture, 1) for picture in (before, after)]
    edges = (np.maximum(*contrasts) >= MIN_CONTRAST).any(0)
    labels, _ = ndimage.label(ndimage.binary_dilation(edges, np.ones((1, MAX_GAP + 1))), np.ones((3, 3)))
    for number, box in enumerate(ndimage.find_objects(labels), 1):
        word = labels[box] == number
        if (differs[box] & word).any():
            yield (*box, word, edges[box])


def _ink(pixels: np.ndarray, word: np.ndarray, ground: np.ndarray) -> np.ndarray:
    """Signed distance ``(C, h, w)`` of the pixels of a word from the median of its ground."""
    levels = np.median(pixels[:, ground], axis=1)
    ink: np.ndarray = (pixels - levels[:, None, None]) * word
    return ink


def _is_in_place(before: np.ndarray, after: np.ndarray, is_cut: bool) -> bool:
    """Whether the ink ``(C, h, w)`` of a word is the same; of a line that the edge of the picture cuts, its columns."""
    totals = before.sum((1, 2)), after.sum((1, 2))
    largest = max(float(np.linalg.norm(np.abs(ink).sum((1, 2)))) for ink in (before, after))
    if largest < MIN_INK:
        return True
    limit = MAX_THIN_INK if before.shape[1] <= THIN else MAX_INK
    if not is_cut and np.linalg.norm(totals[1] - totals[0]) > limit * largest:
        return False
    if before.shape[1] > THIN and _is_moved(before, after):
        return False
    direction = totals[0] + totals[1]
    lines = [np.tensordot(direction, ink, 1) for ink in (before, after)]  # (h, w)
    sideways, correlation = _displacement(lines[0].sum(0), lines[1].sum(0))
    if abs(sideways) > MAX_SIDEWAYS or correlation < (0 if is_cut else MIN_CORRELATION):
        return False
    return is_cut or abs(_displacement(lines[0].sum(1), lines[1].sum(1))[0]) <= MAX_UPWARDS


def _is_moved(before: np.ndarray, after: np.ndarray) -> bool:
    """Whether a word of one picture is that of the other one or two rows up or down, which no other drawing leaves."""
    return any(
        np.abs(first[:, rows:] - second[:, :-rows]).max() <= MAX_ROUNDING
        for rows in (1, 2)
        for first, second in ((before, after), (after, before))
    )


def _displacement(before: np.ndarray, after: np.ndarray) -> tuple[float, float]:
    """Displacement of sums of ink in fractions of a pixel, and their correlation without it."""
    padding = MAX_DISPLACEMENT + 2
    first, second = (ndimage.gaussian_filter1d(np.pad(sums, padding), SMOOTHING) for sums in (before, after))
    middle = second[MAX_DISPLACEMENT:-MAX_DISPLACEMENT]
    products = np.correlate(first, middle, "valid")
    scale = float(np.linalg.norm(first) * np.linalg.norm(second))
    correlation = float(products[MAX_DISPLACEMENT]) / scale if scale else 0.0
    best = int(products.argmax())
    if best in (0, 2 * MAX_DISPLACEMENT):
        return float(best - MAX_DISPLACEMENT), correlation
    left, peak, right = products[best - 1 : best + 2]
    return best - MAX_DISPLACEMENT + float((left - right) / (2 * (left - 2 * peak + right))), correlation
