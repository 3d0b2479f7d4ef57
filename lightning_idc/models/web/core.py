"""find_core: the part of two screenshots that changed itself, without what merely moved because of it.

1. Pixels that differ by more than :data:`MIN_LEVELS` give the changed rows and columns.
2. Rows below that the other image has at another height were pushed down or pulled up; :func:`find_tail` finds how
   far, and where they begin. What remains above them is the core.
3. The same along the line, :func:`find_pushed`: columns to the right of the core that were pushed along. Glyphs are set
   at fractions of a pixel, so that smoothed columns are compared.

Boxes are x1 y1 x2 y2 in pixels, the last two exclusive.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from lightning_idc.rules.windows import box_mean
from lightning_idc.utils.boxes import PixelBox

MIN_LEVELS = 12
"""Smallest difference of a changed pixel in grey levels."""
MIN_TAIL = 6
"""Smallest number of distinctive rows or columns of a tail."""
MAX_LINE = 90
"""Largest height of one line in pixels."""
MAX_PUSH = 64
"""Largest distance in pixels by which a line is pushed along."""
SIMILAR = 36
"""Largest difference of two smoothed columns that show the same, in grey levels."""
MAX_SHIFT = 400
"""Largest distance in pixels by which a tail moves."""


@dataclass(frozen=True, slots=True)
class Core:
    """The changed part of a pair.

    Args:
        before: box in the first image.
        after: box in the second image.
        shift: pixels to the right and down by which the tails moved; 0 without a tail.
        tail: number of matched columns and rows of the tails.
        changed: mask ``(H, W)`` of the pixels that differ.
    """

    before: PixelBox
    after: PixelBox
    shift: tuple[int, int]
    tail: tuple[int, int]
    changed: np.ndarray

    @property
    def union(self) -> PixelBox:
        """Box around both boxes."""
        (a, b, c, d), (e, f, g, h) = self.before, self.after
        return min(a, e), min(b, f), max(c, g), max(d, h)


def find_core(before: np.ndarray, after: np.ndarray) -> Core | None:
    """Find the changed part of two images; None if no pixel differs.

    Args:
        before: uint8 ``(3, H, W)``.
        after: image of the same shape.
    """
    mask = changed_pixels(before, after)
    if not mask.any():
        return None
    left, top, right, bottom = bounds(mask)
    width = mask.shape[1]
    down, row, rows = find_tail(before[:, :, left:right], after[:, :, left:right], top)
    ends = (min(bottom, row), min(bottom, row + down)) if rows else (bottom, bottom)
    along, column, columns = 0, width, 0
    # of an element in a line, the first line shows how far it pushed what follows it; further lines wrap anew
    first = first_run(np.asarray(mask[top : max(ends), left:right].any(1)))
    if first < MAX_LINE:
        lines = slice(top, top + first)
        line, other = before[:, lines], after[:, lines]
        along, column, columns = find_pushed(line, other, left)
        if not columns:  # or what precedes it, in a line that ends at the right
            along, column, columns = find_pushed(line[:, :, ::-1], other[:, :, ::-1], width - right)
            if columns:
                rest = mask[lines, width - column :]
                if rest.any():
                    left, ends = width - column, _line_ends(ends, top + first)
                along, columns = -along, 0
        elif mask[lines, left:column].any():
            ends = _line_ends(ends, top + first)
    sides_end = (min(right, column), min(right, column + along)) if columns else (right, right)
    boxes = []
    for end, side in zip(ends, sides_end, strict=True):
        region = mask[top:end, left:side]
        if region.any():
            x1, y1, x2, y2 = bounds(region)
            boxes.append((left + x1, top + y1, left + x2, top + y2))
        else:  # nothing of this side is left: the element is new, or gone
            boxes.append((left, top, max(left + 1, side), max(top + 1, end)))
    return Core(boxes[0], boxes[1], (along, down), (columns, rows), mask)


def changed_pixels(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Pixels ``(H, W)`` that differ by more than :data:`MIN_LEVELS` in a channel of uint8 images ``(3, H, W)``."""
    changed: np.ndarray = (np.maximum(before, after) - np.minimum(before, after)).max(0) > MIN_LEVELS
    return changed


def bounds(mask: np.ndarray) -> PixelBox:
    """Box around the pixels of a mask that has some."""
    rows, columns = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def find_tail(before: np.ndarray, after: np.ndarray, start: int) -> tuple[int, int, int]:
    """Find rows at the end of one image that the other one has at another height.

    Args:
        before: uint8 ``(3, H, W)``.
        after: image of the same shape.
        start: first row that may belong to the tail.

    Returns:
        Distance by which the rows moved, the first of them in the first image, and the number of distinctive rows; 0
        rows if there is no tail.
    """
    codes = [_codes(image) for image in (before, after)]
    distinctive = [_distinctive(code) for code in codes]
    height = len(codes[0])
    shift = _shift(codes, distinctive, start)
    if shift == 0:
        return 0, height, 0
    # layout rounds to whole pixels, so that parts of a tail move by one pixel more or less
    matched = ~distinctive[0]
    for step in (shift - 1, shift, shift + 1):
        rows = np.arange(max(0, -step), min(height, height - step))
        matched[rows] |= codes[0][rows] == codes[1][rows + step]
    last = height - max(shift, 0) - 1
    unmatched = np.flatnonzero(~matched[start : last + 1])
    first = start + (int(unmatched[-1]) + 1 if len(unmatched) else 0)
    first = max(first, start - min(shift, 0)) if shift < 0 else first
    count = int(distinctive[0][first : last + 1].sum())
    return (shift, first, count) if count >= MIN_TAIL else (0, height, 0)


def find_pushed(before: np.ndarray, after: np.ndarray, start: int) -> tuple[int, int, int]:
    """Find columns at the end of one line that the other image has at another position.

    Args:
        before: uint8 ``(3, H, W)``, one line of text.
        after: image of the same shape.
        start: first column that may belong to them.

    Returns:
        Distance by which the columns moved, the first of them in the first image, and the number of distinctive
        columns; 0 columns if nothing was pushed.
    """
    width = before.shape[2]
    first, second = (box_mean(image[:, ::2, start:].mean(0, dtype=np.float32), 1) for image in (before, after))
    distinctive = np.abs(np.diff(first, axis=1, prepend=first[:, :1])).max(0) > MIN_LEVELS
    still = np.abs(first - second).max(0) < SIMILAR
    changed = np.flatnonzero(~still)
    if not len(changed):
        return 0, width, 0
    last = int(changed[-1]) + 1  # beyond it the line ends, or another part of the page begins
    length = min(first.shape[1], last + MAX_PUSH)
    best = (0, width, 0)
    for shift in [*range(-MAX_PUSH, 0), *range(1, MAX_PUSH + 1)]:
        stop = min(last, last - shift, length, length - shift)
        if stop <= 0 or stop + shift <= 0:
            continue
        low = max(0, -shift)
        similar = np.abs(first[:, low:stop] - second[:, low + shift : stop + shift]).max(0) < SIMILAR
        unmatched = np.flatnonzero(~similar)
        begin = low + (int(unmatched[-1]) + 1 if len(unmatched) else 0)
        # what did not move is no evidence
        count = int((distinctive[begin:stop] & ~still[begin:stop]).sum())
        if count > best[2]:
            best = (shift, start + begin, count)
    return best if best[2] >= MIN_TAIL else (0, width, 0)


def first_run(line: np.ndarray) -> int:
    """Length of the first run of true values, over gaps of up to two pixels."""
    gaps = np.flatnonzero(~(line[:-2] | line[1:-1] | line[2:])) if len(line) > 2 else np.array([], int)
    return int(gaps[0]) if len(gaps) else len(line)


def _line_ends(ends: tuple[int, int], end: int) -> tuple[int, int]:
    return min(ends[0], end), min(ends[1], end)


def _codes(image: np.ndarray) -> np.ndarray:
    """A number for each row ``(H,)``, equal for equal rows."""
    rows = np.ascontiguousarray(image.transpose(1, 0, 2)).reshape(image.shape[1], -1)
    return np.array([hash(row.tobytes()) for row in rows], np.int64)


def _distinctive(codes: np.ndarray) -> np.ndarray:
    """Rows that differ from the row above, so that a match of them means something."""
    return np.concatenate([[False], codes[1:] != codes[:-1]])


def _shift(codes: list[np.ndarray], distinctive: list[np.ndarray], start: int) -> int:
    """The distance with most pairs of equal rows that occur once in each image; 0 if the rows did not move."""
    rows = []
    for code, usable in zip(codes, distinctive, strict=True):
        indices = start + np.flatnonzero(usable[start:])
        values, first, counts = np.unique(code[indices], return_index=True, return_counts=True)
        once = counts == 1
        rows.append(dict(zip(values[once].tolist(), indices[first[once]].tolist(), strict=True)))
    votes = Counter(rows[1][value] - row for value, row in rows[0].items() if value in rows[1])
    moved = [(count, -abs(shift), shift) for shift, count in votes.items() if 0 < abs(shift) <= MAX_SHIFT]
    return max(moved)[2] if moved and max(moved)[0] >= MIN_TAIL // 2 else 0
