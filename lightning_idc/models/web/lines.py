"""compare_lines: the first changed line of text in both images, mark by mark, and the heights of the lines below it.

What wraps anew below a change says little about the change itself, so that the measures of the whole core mix both.
Here the marks (glyphs and their parts) of the first changed line are matched in their order: another letter spacing
keeps all marks at growing distances, another text replaces some, a removed element takes some out, another size or
weight leaves their order but none of their shapes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import ndimage

from lightning_idc.models.web.core import Core

MIN_INK = 40
"""Smallest difference from the ground of a pixel that belongs to a glyph or another mark, in grey levels."""
MAX_MARKS = 60
"""Largest number of marks of a line that are matched, from the left."""
MAX_WIDTH = 900
"""Largest width of a line in pixels."""
ABOVE = 14
"""Pixels above the first changed row in which its line may begin."""
BELOW = 240
"""Pixels below the first changed row in which lines are compared."""
FEW = 12
"""Number of marks whose sizes are compared one by one."""


@dataclass(frozen=True, slots=True)
class Line:
    """The first changed line of an image.

    Args:
        marks: left, top, width, height and number of pixels of each mark ``(N, 5)``, from left to right.
        rows: first and last row of each line from this one on ``(L, 2)``.
        ink: mask of the line.
    """

    marks: np.ndarray
    rows: np.ndarray
    ink: np.ndarray


def compare_lines(before: np.ndarray, after: np.ndarray, core: Core, ground: np.ndarray) -> dict[str, float]:
    """Measures of the first changed line and of the heights of lines; the same names for every pair.

    Args:
        before: uint8 ``(3, H, W)``.
        after: image of the same shape.
        core: from :func:`~lightning_idc.models.web.core.find_core`.
        ground: color ``(3,)`` behind the marks.
    """
    x1, y1, x2, y2 = core.union
    start = max(0, y1 - ABOVE)
    region = slice(start, min(y2 + 4, y1 + BELOW)), slice(max(0, x1 - 1), min(x2 + 1, x1 + MAX_WIDTH))
    first, second = (
        line_of(np.abs(image[:, region[0], region[1]] - ground[:, None, None]).max(0) > MIN_INK, y1 - start)
        for image in (before, after)
    )
    return compare_two(first, second)


def compare_two(first: Line, second: Line) -> dict[str, float]:
    """Measures of two lines; the same names for every pair."""
    return _matched(first.marks, second.marks) | _one_by_one(first, second) | _heights(first.rows, second.rows)


def line_of(ink: np.ndarray, changed_row: int) -> Line:
    """The first line of a mask of ink ``(H, W)`` that ends below a row."""
    rows = runs(np.asarray(ink.any(1)))
    rows = rows[rows[:, 1] > changed_row]
    if not len(rows):
        return Line(np.zeros((0, 5)), rows, ink[:0])
    line = ink[rows[0, 0] : rows[0, 1]]
    labels, count = ndimage.label(line, np.ones((3, 3)))
    boxes = ndimage.find_objects(labels)
    sizes = np.bincount(labels.ravel(), minlength=count + 1)[1:]
    marks = [
        (x.start, y.start, x.stop - x.start, y.stop - y.start, size) for (y, x), size in zip(boxes, sizes, strict=True)
    ]
    return Line(np.array(sorted(marks)[:MAX_MARKS], float).reshape(-1, 5), rows, line)


def runs(line: np.ndarray) -> np.ndarray:
    """Start and end of each run of true values ``(N, 2)``."""
    return np.flatnonzero(np.diff(np.r_[0, line.astype(np.int8), 0])).reshape(-1, 2)


def _longest_common(similar: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the longest common subsequence of two sequences, from the matrix of what is similar ``(N, M)``."""
    lengths = np.zeros(np.add(similar.shape, 1), int)
    for i in range(similar.shape[0] - 1, -1, -1):
        best = np.maximum(lengths[i + 1, :-1], (lengths[i + 1, 1:] + 1) * similar[i])
        lengths[i, :-1] = np.maximum.accumulate(best[::-1])[::-1]
    pairs, i, j = [], 0, 0
    while i < similar.shape[0] and j < similar.shape[1]:
        if similar[i, j]:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif lengths[i + 1, j] >= lengths[i, j + 1]:
            i += 1
        else:
            j += 1
    indices = np.array(pairs, int).reshape(-1, 2)
    return indices[:, 0], indices[:, 1]


def _matched(first: np.ndarray, second: np.ndarray) -> dict[str, float]:
    """Marks that both lines have, in their order: how many, and how far they moved."""
    sizes = np.abs(first[:, None, 2:4] - second[None, :, 2:4]).max(-1, initial=0)
    area = np.abs(first[:, None, 4] - second[None, :, 4])
    similar = (sizes <= 1) & (area <= 2 + 0.2 * first[:, None, 4])
    i, j = _longest_common(similar)
    count, along, down = len(i), second[j, 0] - first[i, 0], second[j, 1] - first[i, 1]
    slope = float(np.polyfit(first[i, 0], along, 1)[0]) * 100 if count > 2 and np.ptp(first[i, 0]) > 0 else 0.0
    skipped = [float(k[0]) if count else -1.0 for k in (i, j)]
    left = [float(n - 1 - k[-1]) if count else -1.0 for n, k in ((len(first), i), (len(second), j))]
    steps = np.diff(along)
    return {
        "marks_before": np.log1p(len(first)),
        "marks_after": np.log1p(len(second)),
        "marks_gone": (len(first) - count) / max(1, len(first)),
        "marks_new": (len(second) - count) / max(1, len(second)),
        "marks_gone_count": np.log1p(len(first) - count),
        "marks_new_count": np.log1p(len(second) - count),
        "along_first": float(along[0]) if count else 0.0,
        "along_last": float(along[-1]) if count else 0.0,
        "along_slope": slope,
        "along_step": float(np.median(steps)) if len(steps) else 0.0,
        "along_spread": float(steps.std()) if len(steps) else 0.0,
        "down_median": float(np.median(down)) if count else 0.0,
        "first_match_before": skipped[0],
        "first_match_after": skipped[1],
        "last_match_before": left[0],
        "last_match_after": left[1],
    }


def _one_by_one(first: Line, second: Line) -> dict[str, float]:
    """Sizes of the first marks of both lines, the n-th with the n-th, and the strokes and heights of the lines."""
    count = min(len(first.marks), len(second.marks), FEW)
    a, b = first.marks[:count], second.marks[:count]
    ratios = np.log((b[:, 2:] + 0.5) / (a[:, 2:] + 0.5)) if count else np.zeros((1, 3))
    gaps = [line[1:, 0] - line[:-1, 0] - line[:-1, 2] for line in (a, b)]
    wider = gaps[1] - gaps[0] if count > 1 else np.zeros(1)
    pixels = [float(line.ink.sum()) for line in (first, second)]
    edges = [float((line.ink & ~ndimage.binary_erosion(line.ink)).sum()) for line in (first, second)]
    strokes = [p / max(1.0, e) for p, e in zip(pixels, edges, strict=True)]
    heights = [float(len(line.ink)) for line in (first, second)]
    return {
        "mark_width": float(np.median(ratios[:, 0])),
        "mark_height": float(np.median(ratios[:, 1])),
        "mark_pixels": float(np.median(ratios[:, 2])),
        "mark_width_spread": float(ratios[:, 0].std()),
        "mark_height_spread": float(ratios[:, 1].std()),
        "mark_gap": float(np.median(wider)),
        "mark_gap_spread": float(wider.std()),
        "mark_left": float(b[0, 0] - a[0, 0]) if count else 0.0,
        "mark_top": float(b[0, 1] - a[0, 1]) if count else 0.0,
        "line_stroke": float(np.log((strokes[1] + 0.1) / (strokes[0] + 0.1))),
        "line_ink": float(np.log((pixels[1] + 10) / (pixels[0] + 10))),
        "line_height": heights[1] - heights[0],
        "line_height_ratio": float(np.log((heights[1] + 1) / (heights[0] + 1))),
        "line_height_before": np.log1p(heights[0]),
    }


def _heights(first: np.ndarray, second: np.ndarray) -> dict[str, float]:
    """Tops of the lines from the first changed one on: how far each moved, and the distances between them."""
    count = min(len(first), len(second), 6)
    moves = second[:count, 0] - first[:count, 0] if count else np.zeros(1)
    pitches = [float(np.median(np.diff(rows[:6, 0]))) if len(rows) > 1 else 0.0 for rows in (first, second)]
    heights = [rows[:6, 1] - rows[:6, 0] for rows in (first, second)]
    same = float((heights[0][:count] == heights[1][:count]).mean()) if count else 0.0
    return {
        "rows_before": float(len(first)),
        "rows_more": float(len(second) - len(first)),
        "row_move_first": float(moves[0]),
        "row_move_second": float(moves[min(1, len(moves) - 1)]),
        "row_move_last": float(moves[-1]),
        "row_move_step": float(np.median(np.diff(moves))) if len(moves) > 1 else 0.0,
        "row_move_spread": float(np.diff(moves).std()) if len(moves) > 1 else 0.0,
        "row_pitch": pitches[1] - pitches[0],
        "row_pitch_ratio": float(np.log((pitches[1] + 1) / (pitches[0] + 1))),
        "rows_same_height": same,
    }
