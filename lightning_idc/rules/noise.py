"""noise_of: explains the differences of two screenshots as noise of the capture, where they are nothing else.

Two renders of one page may differ although nobody changed the page. In this order, the differences are taken for

1. rounding: at most 2 grey levels in at most 0.1 % of the pixels, as repeated drawing of rounded corners leaves them;
2. a text cursor: at most two upright bars of one colour, 1 or 2 pixels wide and 12 to 32 high, and nothing else;
3. a scrolled view: the whole picture is shifted by up to 3 pixels, and is equal otherwise;
4. another encoding, such as JPEG: most edges of the page differ a little, not by a shift of whole pixels, and no
   region differs by more than the noise that is estimated from the pair itself
   (:mod:`~lightning_idc.rules.detection`).

Another font rasteriser is not among them: it sets glyphs at other positions, which moves text by whole pixels and wraps
lines, as a change of the page does. One difference that none of these explains makes the pair a changed one: a shift of
one part of the page is a change, and so is any difference on a page most of whose other edges are equal.
"""

from __future__ import annotations

import numpy as np
from scipy import ndimage

from lightning_idc.images.overlap import estimate_shift
from lightning_idc.rules.detection import BLOCK, compare_pair, find_regions
from lightning_idc.rules.windows import box_mean, pooled

MAX_ROUNDING, MAX_ROUNDED = 2, 1e-3
"""Largest difference of rounding in grey levels, and largest fraction of such pixels."""
MAX_SCROLL = 3
"""Largest shift of the whole picture, in pixels."""
MIN_SCROLLED = 0.5
"""Smallest height and width of the shifted content, as a fraction of the picture."""
CURSOR_WIDTH, CURSOR_HEIGHT = 2, (12, 32)
"""Largest width of a text cursor, and its smallest and largest height, in pixels."""
MIN_CORRELATION = 0.9
"""Smallest correlation of the smoothed images of two encodings."""
ENCODING_MARGIN = 3
"""Threshold of regions, as a multiple of that of descriptions: JPEG spreads coloured edges over 16 pixels."""
MIN_DIFFERING = 0.7
"""Smallest fraction of the blocks with edges that another encoding changes."""
MAX_MOVED = 0.1
"""Largest fraction of the differing blocks that a shift by whole pixels explains."""
MAX_CURSORS = 2
"""A cursor that moved leaves one bar and adds another."""


def noise_of(before: np.ndarray, after: np.ndarray) -> str | None:
    """Name the noise that explains all differences of two images; None if they are more than noise.

    Args:
        before: Uint8 ``(C, H, W)``.
        after: Image of the same shape.
    """
    differs = (before != after).any(0)
    if _is_rounding(before, after, differs):
        return "rounding"
    if _is_cursor(before, after, differs):
        return "a text cursor"
    if shift := _scrolled(before, after, differs):
        return f"the view scrolled by {shift[0]}, {shift[1]} pixels"
    return "another encoding" if _is_encoding(before, after, differs) else None


def _is_rounding(before: np.ndarray, after: np.ndarray, differs: np.ndarray) -> bool:
    largest = np.abs(after.astype(np.int16) - before).max(initial=0)
    return bool(largest <= MAX_ROUNDING and differs.mean() <= MAX_ROUNDED)


def _is_cursor(before: np.ndarray, after: np.ndarray, differs: np.ndarray) -> bool:
    """Whether the differing pixels are one or two upright bars, each of one colour in one of the images."""
    if differs.sum() > MAX_CURSORS * CURSOR_WIDTH * CURSOR_HEIGHT[1]:
        return False
    labels, count = ndimage.label(differs, np.ones((3, 3)))
    boxes = ndimage.find_objects(labels)
    sizes = [(rows.stop - rows.start, columns.stop - columns.start) for rows, columns in boxes]
    filled = all(
        differs[box].all() and any(_is_even(image[:, box[0], box[1]]) for image in (before, after)) for box in boxes
    )
    return (
        0 < count <= MAX_CURSORS
        and filled
        and all(CURSOR_HEIGHT[0] <= h <= CURSOR_HEIGHT[1] and w <= CURSOR_WIDTH for h, w in sizes)
    )


def _is_even(pixels: np.ndarray) -> bool:
    """Whether pixels ``(C, h, w)`` have one colour."""
    return bool((pixels == pixels[:, :1, :1]).all())


def _scrolled(before: np.ndarray, after: np.ndarray, differs: np.ndarray) -> tuple[int, int] | None:
    """Shift to the right and down that explains all differences but rounding; None if there is none."""
    height, width = differs.shape
    # a single element that moved on an empty page is a change
    extent = [np.flatnonzero(differs.any(axis)) for axis in (1, 0)]
    spans = [(lines[-1] - lines[0] + 1) / side for lines, side in zip(extent, (height, width), strict=True)]
    if min(spans) < MIN_SCROLLED:
        return None
    dx, dy = estimate_shift(before.mean(0, dtype=np.float32), after.mean(0, dtype=np.float32), MAX_SCROLL)
    if not (dx or dy) or max(abs(dx), abs(dy)) > MAX_SCROLL:
        return None
    one = before[:, max(0, -dy) : height - max(0, dy), max(0, -dx) : width - max(0, dx)]
    other = after[:, max(0, dy) : height - max(0, -dy), max(0, dx) : width - max(0, -dx)]
    rest = (one != other).any(0)
    return (dx, dy) if _is_rounding(one, other, rest) or _is_cursor(one, other, rest) else None


def _is_encoding(before: np.ndarray, after: np.ndarray, differs: np.ndarray) -> bool:
    """Whether two images show the same, most edges differ, and none by more than the noise of the pair."""
    first, second = before.astype(np.float32), after.astype(np.float32)
    greys = [image.mean(0) for image in (first, second)]
    smooth = box_mean(greys[0], 1)
    edges = pooled((smooth != greys[0]).astype(np.float32), BLOCK) > 0
    differing = edges & (pooled(differs.astype(np.float32), BLOCK) > 0)
    if not differing.any() or differing.sum() < MIN_DIFFERING * edges.sum():
        return False
    pair = [smooth.ravel(), box_mean(greys[1], 1).ravel()]
    if min(float(grey.std()) for grey in pair) == 0 or np.corrcoef(pair)[0, 1] < MIN_CORRELATION:
        return False
    if _moved(greys[0], greys[1], differing) > MAX_MOVED:
        return False
    values, threshold, radius = compare_pair(first, second, np.ones(before.shape[1:], bool))
    return radius > 0 and not find_regions(values, ENCODING_MARGIN * threshold, radius)


def _moved(before: np.ndarray, after: np.ndarray, blocks: np.ndarray) -> float:
    """Fraction of blocks that are equal after a shift by a few whole pixels: layout moves them, and no encoder."""
    equal = np.zeros(blocks.shape, bool)
    padded = np.pad(before, MAX_SCROLL, mode="edge")
    height, width = before.shape
    for dy in range(2 * MAX_SCROLL + 1):
        for dx in range(2 * MAX_SCROLL + 1):
            unequal = padded[dy : dy + height, dx : dx + width] != after
            equal |= pooled(unequal.astype(np.float32), BLOCK) == 0
    return float(equal[blocks].mean())
