"""compare_parts: the words that changed most, mark by mark, where the first changed line may be another one.

Text that pushes others along or down makes the first changed line one of those that it pushed, such as the head of a
column of a table. The words without a partner are those of the element itself; of their clusters, the one whose size
changed most is compared with the nearest cluster of new words.

Boxes are x1 y1 x2 y2 in pixels, the last two exclusive.
"""

from __future__ import annotations

import numpy as np

from lightning_idc.models.web.candidates import ground_of
from lightning_idc.models.web.lines import MIN_INK, Line, compare_two, line_of
from lightning_idc.models.web.words import Words, around, clusters
from lightning_idc.utils.boxes import PixelBox

MIN_UNDERLINE, MAX_STROKE = 0.9, 3
"""Smallest share of a row that an underline covers, and its largest height in pixels: it joins the glyphs above it."""
NO_LINE = Line(np.zeros((0, 5)), np.zeros((0, 2), int), np.zeros((0, 1), bool))


def compare_parts(before: np.ndarray, after: np.ndarray, words: Words) -> dict[str, float]:
    """Measures of the words that changed most; the same names for every pair.

    Args:
        before: uint8 ``(3, H, W)``.
        after: image of the same shape.
        words: from :func:`~lightning_idc.models.web.words.match_words`.
    """
    boxes = _most_changed(*([around(part) for part in clusters(side)] for side in (words.gone, words.new)))
    lines = [
        NO_LINE if box is None else _line_in(image, box) for image, box in zip((before, after), boxes, strict=True)
    ]
    return {f"part_{name}": value for name, value in compare_two(*lines).items()}


def _most_changed(gone: list[PixelBox], new: list[PixelBox]) -> tuple[PixelBox | None, PixelBox | None]:
    """The part whose size changed most, and the nearest new one; of equal ones, the first."""
    if not gone or not new:
        return next(iter(gone), None), next(iter(new), None)
    best, size = (gone[0], new[0]), -1
    for part in gone:
        other = min(new, key=lambda box: abs(box[0] - part[0]) + abs(box[1] - part[1]))
        changed = max(abs((other[k + 2] - other[k]) - (part[k + 2] - part[k])) for k in (0, 1))
        if changed > size + 1:
            best, size = (part, other), changed
    return best


def _line_in(image: np.ndarray, box: PixelBox) -> Line:
    x1, y1, x2, y2 = box
    crop = image[:, max(0, y1 - 1) : y2 + 1, max(0, x1 - 1) : x2 + 1].astype(np.int16)
    ink = np.abs(crop - ground_of(image, box, 1)[:, None, None]).max(0) > MIN_INK
    is_underline = ink.mean(1) > MIN_UNDERLINE
    if is_underline.sum() <= MAX_STROKE:
        ink[is_underline] = False
    return line_of(ink, 0)
