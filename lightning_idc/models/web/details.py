"""describe_candidates: what lies in each box that may be the changed element, so that the boxes can be compared."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lightning_idc.models.web.core import Core, bounds
from lightning_idc.models.web.words import Words
from lightning_idc.utils.boxes import PixelBox

NUM_DETAILS = 23
"""Number of values of a candidate."""
PARTLY = 0.1, 0.9
"""Shares of a word between which a box cuts it."""


def describe_candidates(boxes: Sequence[PixelBox], words: Words, core: Core) -> np.ndarray:
    """Values of each candidate ``(N, NUM_DETAILS)``.

    Sizes, distances from the first candidate, and the overlap with the others; the share of the words that went, that
    moved, that moved as the first one did and that stayed in the box, and their share of the words in it; the number of
    words in the box and of those that it cuts; the changed pixels; the overlap with a frame.

    Args:
        boxes: candidates, the core first.
        words: words around the change.
        core: core of the change.
    """
    box = np.array(boxes, float)
    sides = np.log1p(box[:, 2:] - box[:, :2])
    distances = box - box[0]
    areas = (box[:, 2:] - box[:, :2]).prod(1)
    inner = _shared(box, words.before)  # (N, words), in pixels
    sizes = (words.before[:, 2:] - words.before[:, :2]).prod(1)
    in_box = np.maximum(inner.sum(1), 1)
    kinds = [words.is_gone, words.is_moved, words.is_moved_first, ~words.is_gone & ~words.is_moved]
    shares = inner / np.maximum(sizes, 1)
    pixels = _pixels_in(core.changed, box)
    return np.column_stack(
        [
            sides,
            sides[:, 0] - sides[:, 1],
            np.sign(distances) * np.log1p(np.abs(distances)),
            _overlaps(box, box).mean(1),
            *(inner[:, kind].sum(1) / max(1, sizes[kind].sum()) for kind in kinds),
            *(inner[:, kind].sum(1) / in_box for kind in kinds),
            np.log1p((shares > 0.5).sum(1)),
            ((shares > PARTLY[0]) & (shares < PARTLY[1])).sum(1),
            pixels / max(1, int(core.changed.sum())),
            pixels / np.maximum(areas, 1),
            _overlaps(box, words.frames).max(1, initial=0),
            in_box / np.maximum(areas, 1),
            np.full(len(box), np.log1p(len(words.before))),
        ]
    )


def _shared(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Pixels that boxes ``(N, 4)`` and ``(M, 4)`` share, ``(N, M)``."""
    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:], second[None, :, 2:])
    pixels: np.ndarray = np.clip(high - low, 0, None).prod(-1)
    return pixels


def _overlaps(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Intersection over union ``(N, M)``."""
    shared = _shared(first, second)
    areas = [(boxes[:, 2:] - boxes[:, :2]).prod(1) for boxes in (first, second)]
    overlaps: np.ndarray = shared / np.maximum(areas[0][:, None] + areas[1][None] - shared, 1)
    return overlaps


def _pixels_in(mask: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Number of true pixels of a mask ``(H, W)``, which has some, in each box."""
    left, top, right, bottom = bounds(mask)
    total = np.zeros((bottom - top + 1, right - left + 1), np.int32)
    np.cumsum(mask[top:bottom, left:right].cumsum(0, dtype=np.int32), 1, out=total[1:, 1:])
    cut = np.clip(boxes, [left, top, left, top], [right, bottom, right, bottom]).astype(int)
    x1, y1, x2, y2 = (cut - [left, top, left, top]).T
    pixels: np.ndarray = total[y2, x2] - total[y1, x2] - total[y2, x1] + total[y1, x1]
    return pixels
