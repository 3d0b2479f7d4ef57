"""noise_of: explains the differences of two screenshots as noise of the capture, where they are nothing else.

Two renders of one page may differ although nobody changed the page. In this order, the differences are taken for

1. rounding: at most 2 grey levels in at most 0.1 % of the pixels, as repeated drawing of rounded corners leaves them;
2. a text cursor: at most two upright bars of one colour, 1 or 2 pixels wide and 12 to 32 high, and nothing else;
3. a scrolled view: the whole picture, or all of it but fixed parts, is shifted by up to 3 pixels, and is equal
   otherwise (:mod:`~lightning_idc.rules.scrolling`);
4. another encoding, such as JPEG, unless both files are lossless: most edges of the page differ a little, not by a
   shift of whole pixels, as often lighter as darker, and no region differs by more than the noise that is estimated
   from the pair itself (:mod:`~lightning_idc.rules.detection`);
5. another font rasteriser: the glyphs of the whole page are redrawn (:mod:`~lightning_idc.rules.redrawing`), and
   each word has the same ink at the same position (:mod:`~lightning_idc.rules.ink`).

One difference that none of these explains makes the pair a changed one: a shift of one part of the page is a change,
and so is any difference on a page most of whose other edges are equal. ``lenient`` also takes for noise what may as
well be a change: glyphs that are redrawn at other positions, and parts that moved without being cut.
"""

from __future__ import annotations

import numpy as np
from scipy import ndimage

from lightning_idc.rules.detection import BLOCK, compare_pair, find_regions
from lightning_idc.rules.ink import is_same_ink
from lightning_idc.rules.redrawing import redrawn_share
from lightning_idc.rules.scrolling import (
    MAX_SCROLL,
    Shift,
    estimate_scroll,
    extent,
    is_under_fixed_parts,
    shifted,
)
from lightning_idc.rules.windows import box_mean, pooled

MAX_ROUNDING, MAX_ROUNDED = 2, 1e-3
"""Largest difference of rounding in grey levels, and largest fraction of such pixels."""
CURSOR_WIDTH, CURSOR_HEIGHT = 2, (12, 32)
"""Largest width of a text cursor, and its smallest and largest height, in pixels."""
MIN_CORRELATION = 0.9
"""Smallest correlation of the smoothed images of two encodings."""
ENCODING_MARGIN = 3
"""Threshold of regions, as a multiple of that of descriptions: JPEG spreads coloured edges over 16 pixels."""
MIN_DIFFERING = 0.7
"""Smallest fraction of the blocks with edges that another encoding changes."""
MAX_ENCODING = 48
"""Largest difference of 90 % of the pixels that another encoding changes, in grey levels."""
FAR, MAX_FAR = 50, 1e-3
"""Difference in brightness that hardly a pixel of another encoding has, and largest fraction of such pixels: JPEG files
of quality 90 have none, of quality 60 0.0004; pages with a ground of many shades that wrapped anew 0.0135 and more."""
COLOUR_RADIUS = 4
"""Radius of the window in which encoders keep only the mean colour, in pixels."""
MAX_MOVED = 0.1
"""Largest fraction of the differing blocks that a shift by whole pixels explains."""
MAX_ONE_SIDED = 0.9
"""Largest fraction of the differences within a block that others do not balance: sharper strokes reach 0.81, and text
of another color 1."""
MIN_SPREAD, MIN_REDRAWN = 0.05, 0.2
"""Smallest fractions of the blocks with edges that differ, and of the pieces of text that are redrawn."""
MIN_WHOLE = 0.5
"""Smallest height or width of what moved when the whole picture did, as a fraction: one element alone is less."""
MAX_CURSORS = 2
"""A cursor that moved leaves one bar and adds another."""


def noise_of(before: np.ndarray, after: np.ndarray, lenient: bool = False, lossless: bool = False) -> str | None:
    """Name the noise that explains all differences of two images; None if they are more than noise.

    Args:
        before: Uint8 ``(C, H, W)``.
        after: Image of the same shape.
        lenient: Whether differences that may as well be a change are noise, too.
        lossless: Whether both images come from files that store all values, so that no encoding explains a difference.
    """
    differs = (before != after).any(0)
    if _is_rounding(before, after, differs):
        return "rounding"
    if _is_cursor(before, after, differs):
        return "a text cursor"
    if shift := _scrolled(before, after, differs, lenient):
        return f"the view scrolled by {shift[0]}, {shift[1]} pixels"
    grey = _brightness(before)
    edges = pooled((np.abs(box_mean(grey, 1) - grey) > 0.01).astype(np.float32), BLOCK) > 0
    differing = edges & (pooled(differs.astype(np.float32), BLOCK) > 0)
    spread = float(differing.sum()) / max(int(edges.sum()), 1)
    if spread < MIN_SPREAD:
        return None
    greys = [grey, _brightness(after)]
    brighter = greys[1] - grey
    if _one_sided(brighter, differing) > MAX_ONE_SIDED:
        return None
    is_near = not lossless and spread >= MIN_DIFFERING and (np.abs(brighter) > FAR).mean() <= MAX_FAR
    if is_near and _is_encoding(before, after, differs, differing):
        return "another encoding"
    # the ink comes first: on changed pairs it takes a third of the time of the share
    if not lenient and not is_same_ink(before, after):
        return None
    share = redrawn_share(*(np.rint(grey).astype(np.uint8) for grey in greys))
    return "another font rasteriser" if share >= MIN_REDRAWN else None


def _is_rounding(before: np.ndarray, after: np.ndarray, differs: np.ndarray) -> bool:
    if differs.mean() > MAX_ROUNDED:
        return False
    return bool(np.abs(after[:, differs].astype(np.int16) - before[:, differs]).max(initial=0) <= MAX_ROUNDING)


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


def _scrolled(before: np.ndarray, after: np.ndarray, differs: np.ndarray, lenient: bool) -> Shift | None:
    """Shift to the right and down that explains all differences; None if there is none."""
    if max(extent(differs)) < MIN_WHOLE or (shift := estimate_scroll(before, after, differs)) is None:
        return None
    # up or to the left, where parts that stay in place hide content and show none that was hidden
    is_back = max(shift) > 0
    first, second = (after, before) if is_back else (before, after)
    forward = (-shift[0], -shift[1]) if is_back else shift
    expected = shifted(first, forward, second)
    rest = (expected != second).any(0)
    is_whole = _is_rounding(expected, second, rest) or _is_cursor(expected, second, rest)
    return shift if is_whole or is_under_fixed_parts(first, second, forward, must_be_cut=not lenient) else None


def _one_sided(difference: np.ndarray, blocks: np.ndarray) -> float:
    """Fraction of the differences ``(H, W)`` that others of the same block do not balance."""
    total = float(pooled(np.abs(difference), BLOCK)[blocks].sum())
    return float(np.abs(pooled(difference, BLOCK))[blocks].sum()) / total if total else 0.0


def _is_encoding(before: np.ndarray, after: np.ndarray, differs: np.ndarray, differing: np.ndarray) -> bool:
    """Whether two images show the same, and no part differs by more than the noise of the pair."""
    levels = np.abs(after.astype(np.int16) - before).max(0)[differs]
    if np.quantile(levels, 0.9) > MAX_ENCODING:
        return False
    first, second = (_with_mean_colours(image.astype(np.float32)) for image in (before, after))
    greys = [image.mean(0) for image in (first, second)]
    pair = [box_mean(grey, 1).ravel() for grey in greys]
    if min(float(grey.std()) for grey in pair) == 0 or np.corrcoef(pair)[0, 1] < MIN_CORRELATION:
        return False
    if _moved(before.mean(0), after.mean(0), differing) > MAX_MOVED:
        return False
    values, threshold, radius = compare_pair(first, second, np.ones(before.shape[1:], bool))
    return radius > 0 and not find_regions(values, ENCODING_MARGIN * threshold, radius)


def _brightness(image: np.ndarray) -> np.ndarray:
    """Luma ``(H, W)`` of grey or RGB values, as JPEG defines it."""
    weights = np.array([0.299, 0.587, 0.114] if len(image) == 3 else [1 / len(image)] * len(image), np.float32)
    return np.tensordot(weights, image, 1)


def _with_mean_colours(image: np.ndarray) -> np.ndarray:
    """An image ``(C, H, W)`` with its brightness and the mean colour of the window, which is all that encoders keep."""
    if len(image) != 3:
        return image
    brightness = _brightness(image)
    return np.clip(brightness + box_mean(image - brightness, COLOUR_RADIUS), 0, 255)


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
