"""find_candidates: boxes that may be the changed element, around the pixels that changed.

The changed pixels are not the box of the element: text of another color ends before its paragraph does, a removed link
pulls up all that follows it, and an element that moved leaves a difference at its edges only. Each candidate starts at
a part of the changed pixels and grows to what an element usually ends at; WebNet chooses one.

Starts, all in the first image:

- ``all``: all changed pixels; ``core``: those of :func:`~lightning_idc.models.web.core.find_core`;
- ``first``: the first run of changed rows, which is the first line where a change makes text wrap anew;
- ``lead``, ``trail``: the first and the last marks of that line, up to a gap of more than a space;
- ``hue``: its first marks of one color, such as a link in a sentence;
- ``words``: all words with changed pixels (:mod:`~lightning_idc.models.web.words`); ``gone``, ``gone part``,
  ``most gone``: those without a partner, their first cluster and their largest one; ``moved``: those that moved as far
  as the first one that did;
- ``frame``: the smallest border around ``most gone``, or around ``moved`` if no word is without a partner.

Boxes are x1 y1 x2 y2 in pixels, the last two exclusive.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lightning_idc.models.web.colors import most_frequent_color
from lightning_idc.models.web.core import MAX_LINE, Core, bounds, first_run
from lightning_idc.models.web.words import Words, around, clusters
from lightning_idc.utils.boxes import PixelBox

MIN_MARK = 24
"""Smallest difference from the ground of a mark, in grey levels."""
MAX_WORD_GAP, MAX_LINE_GAP = 7, 14
"""Largest gap between the marks of a word or phrase, and of a line, in pixels."""
MAX_HUE, MIN_OTHER_HUE = 50, 90
"""Largest difference of a color from the first one of a line, and smallest one of another color, in grey levels."""
MAX_PAD = 24
"""Largest inner spacing above and below a text in pixels."""
ASCENT, DESCENT = 4, 5
"""Pixels of a line of text above and below its marks."""


@dataclass(frozen=True, slots=True)
class Extents:
    """Positions at which the box of an element may end, around a start.

    Args:
        start: box of marks.
        free: the start, extended in each direction up to the next mark or edge.
        line: left and right end of the line of marks that the start is part of.
    """

    start: PixelBox
    free: PixelBox
    line: tuple[int, int]


Span = Callable[[Extents], tuple[int, int]]


def _symmetric(e: Extents) -> tuple[int, int]:
    """From the left end of the start to an equal distance from the right end of its ground."""
    return e.start[0], max(e.start[2], e.free[2] - (e.start[0] - e.free[0]))


def _padded(e: Extents) -> tuple[int, int]:
    margin = min(e.start[0] - e.free[0], e.free[2] - e.start[2])
    return e.start[0] - margin, e.start[2] + margin


def _padded_down(e: Extents) -> tuple[int, int]:
    margin = min(e.start[1] - e.free[1], e.free[3] - e.start[3], MAX_PAD)
    return e.start[1] - margin, e.start[3] + margin


def _leaded(e: Extents) -> tuple[int, int]:
    """Height of a line of text around marks."""
    return max(e.free[1], e.start[1] - ASCENT), min(e.free[3], e.start[3] + DESCENT)


ACROSS: dict[str, Span] = {
    "marks": lambda e: (e.start[0], e.start[2]),
    "free": lambda e: (e.free[0], e.free[2]),
    "symmetric": _symmetric,
    "padded": _padded,
    "line": lambda e: e.line,
    "rest of the line": lambda e: (e.line[0], max(e.line[1], e.free[2])),
}
"""Left and right end of a candidate."""
DOWN: dict[str, Span] = {
    "marks": lambda e: (e.start[1], e.start[3]),
    "free": lambda e: (e.free[1], e.free[3]),
    "leaded": _leaded,
    "padded": _padded_down,
}
"""Upper and lower end of a candidate."""
CANDIDATES: tuple[tuple[str, str, str], ...] = (
    ("core", "marks", "marks"),
    ("all", "padded", "leaded"),
    ("core", "symmetric", "leaded"),
    ("first", "marks", "marks"),
    ("first", "rest of the line", "leaded"),
    ("lead", "symmetric", "marks"),
    ("first", "free", "padded"),
    ("core", "line", "leaded"),
    ("hue", "marks", "marks"),
    ("trail", "padded", "leaded"),
    ("all", "free", "free"),
    ("core", "padded", "padded"),
    ("core", "marks", "leaded"),
    ("words", "free", "leaded"),
    ("most gone", "rest of the line", "padded"),
    ("first", "symmetric", "leaded"),
    ("most gone", "line", "leaded"),
    ("gone part", "padded", "marks"),
    ("moved", "rest of the line", "padded"),
    ("moved", "marks", "leaded"),
    ("most gone", "marks", "leaded"),
    ("lead", "marks", "leaded"),
    ("gone part", "marks", "leaded"),
    ("frame", "marks", "marks"),
)
"""Start, ends across and ends down of each candidate. They were chosen on training pairs, greedily by the number of
further elements that they overlap by more than one half: 94 % in all, of which the core alone has 45."""


def find_candidates(image: np.ndarray, core: Core, words: Words) -> list[PixelBox]:
    """Boxes of :data:`CANDIDATES`, in their order.

    Args:
        image: the first image, uint8 ``(3, H, W)``.
        core: core of the change.
        words: words around the change.
    """
    starts = _starts(image, core) | _starts_of(words, core)
    extents = {box: _extents(image, box) for box in set(starts.values())}
    boxes = []
    for start, across, down in CANDIDATES:
        left, right = ACROSS[across](extents[starts[start]])
        top, bottom = DOWN[down](extents[starts[start]])
        boxes.append((left, top, max(right, left + 1), max(bottom, top + 1)))
    return boxes


def _starts(image: np.ndarray, core: Core) -> dict[str, PixelBox]:
    x1, y1, x2, y2 = bounds(core.changed)
    height = first_run(np.asarray(core.changed[y1:y2, x1:x2].any(1)))
    left, _, right, bottom = bounds(core.changed[y1 : y1 + height])
    first = left, y1, right, y1 + bottom
    starts = {"all": (x1, y1, x2, y2), "core": core.before, "first": first}
    starts |= dict.fromkeys(("lead", "trail", "hue"), first)
    if height < MAX_LINE:
        starts |= _marks_of(image, first)
    return starts


def _starts_of(words: Words, core: Core) -> dict[str, PixelBox]:
    """Starts around words; the core where there are none."""
    starts = dict.fromkeys(("words", "gone", "gone part", "most gone", "moved", "frame"), core.before)
    if len(words.before):
        starts["words"] = around(words.before)
    if len(words.gone):
        parts = clusters(words.gone)
        starts |= {"gone": around(words.gone), "gone part": around(parts[0])}
        starts["most gone"] = around(max(parts, key=lambda part: (part[:, 2:] - part[:, :2]).prod(1).sum()))
    if words.is_moved.any():
        starts["moved"] = around(words.before[words.is_moved_first])
    x1, y1, x2, y2 = starts["most gone" if len(words.gone) else "moved"]
    center = np.array([x1 + x2, y1 + y2]) / 2
    frames = words.frames[((words.frames[:, :2] <= center) & (words.frames[:, 2:] >= center)).all(1)]
    if len(frames):
        smallest = (frames[:, 2:] - frames[:, :2]).prod(1).argmin()
        starts["frame"] = around(frames[[smallest]])
    return starts


def _marks_of(image: np.ndarray, line: PixelBox) -> dict[str, PixelBox]:
    """The first and the last marks of a line, and its first marks of one color."""
    x1, y1, x2, y2 = line
    crop = image[:, y1:y2, x1:x2].astype(np.int16)
    contrast = np.abs(crop - ground_of(image, line)[:, None, None]).max(0)
    columns = (contrast > MIN_MARK).any(0)
    if not columns.any():
        return {}
    start, stop = _first_marks(columns)
    last_start, last_stop = _first_marks(columns[::-1])
    boxes = {"lead": (x1 + start, y1, x1 + stop, y2), "trail": (x2 - last_stop, y1, x2 - last_start, y2)}
    row, column = np.unravel_index(int(contrast[:, start:stop].argmax()), (y2 - y1, stop - start))
    distance = np.abs(crop - crop[:, row, start + column][:, None, None]).max(0)
    is_strong = contrast > 0.7 * contrast.max()  # smoothed edges of glyphs have other colors
    other = np.flatnonzero((is_strong & (distance > MIN_OTHER_HUE)).any(0))
    end = next((int(index) for index in other if index >= stop), x2 - x1)
    same = np.flatnonzero((is_strong & (distance < MAX_HUE)).any(0)[:end])
    if len(same):
        boxes["hue"] = x1 + int(same[0]), y1, x1 + int(same[-1]) + 1, y2
    return boxes


def _first_marks(columns: np.ndarray) -> tuple[int, int]:
    """Start and end of the first marks, up to a gap; at least one column has a mark."""
    marked = np.flatnonzero(columns)
    gaps = np.flatnonzero(np.diff(marked) > MAX_WORD_GAP)
    return int(marked[0]), int(marked[gaps[0] if len(gaps) else -1]) + 1


def _extents(image: np.ndarray, start: PixelBox) -> Extents:
    x1, y1, x2, y2 = start
    ground = ground_of(image, start)
    columns, rows = is_marked(image[:, y1:y2], ground, 0), is_marked(image[:, :, x1:x2], ground, 1)
    left, right = x1 - _free(columns[:x1][::-1]), x2 + _free(columns[x2:])
    top, bottom = y1 - _free(rows[:y1][::-1]), y2 + _free(rows[y2:])
    line = x1 - marked_length(columns[:x1][::-1]), x2 + marked_length(columns[x2:])
    return Extents(start, (left, top, right, bottom), line)


def ground_of(image: np.ndarray, box: PixelBox, margin: int = 3) -> np.ndarray:
    """Most frequent color ``(3,)`` of a box and of the pixels around it."""
    x1, y1, x2, y2 = box
    return most_frequent_color(image[:, max(0, y1 - margin) : y2 + margin, max(0, x1 - margin) : x2 + margin])


def is_marked(strip: np.ndarray, ground: np.ndarray, axis: int) -> np.ndarray:
    """Whether there is a mark in each column (axis 0) or row (axis 1) of a strip ``(3, rows, columns)``."""
    marked: np.ndarray = (np.abs(strip.astype(np.int16) - ground[:, None, None]).max(0) > MIN_MARK).any(axis)
    return marked


def _free(is_marked: np.ndarray) -> int:
    """Number of lines before the first one with a mark."""
    return int(is_marked.argmax()) if is_marked.any() else len(is_marked)


def marked_length(columns: np.ndarray, gap: int = MAX_LINE_GAP) -> int:
    """Number of columns up to the last mark before a gap that ends a line, of more than ``gap`` columns."""
    marked = np.concatenate([[-1], np.flatnonzero(columns)])
    gaps = np.flatnonzero(np.diff(marked) > gap)
    return int(marked[gaps[0] if len(gaps) else -1]) + 1
