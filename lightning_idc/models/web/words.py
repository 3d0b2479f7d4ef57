"""match_words: the words of both images around the change, which of them moved, and which changed themselves.

A page that wraps anew shows most of its words at other places, so that the changed pixels say little. Words survive:
each word of the first image is looked for in the second one, at any place, by its size and the pattern of its ink.
Where several places fit, the distance by which most words moved wins. The words without a partner are those of the
element whose text, size or weight changed, or that was removed; the others say what it did to the page.

Boxes are x1 y1 x2 y2 in pixels, the last two exclusive.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import ndimage
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from lightning_idc.models.web.core import Core, bounds
from lightning_idc.utils.boxes import PixelBox

MIN_EDGE = 40
"""Smallest difference of two neighbouring pixels at an edge, in grey levels."""
WORD_GAP = 3
"""Largest gap between the edges of one word in pixels."""
MARGIN = 48
"""Pixels around the changed ones in which a word may begin or end."""
MIN_AREA = 50
"""Smallest area of a word in pixels: dots and bullets are too much alike."""
MAX_WORDS = 400
"""Largest number of words of an image, from the top."""
BINS = (3, 6)
"""Rows and columns of the pattern of a word."""
SIMILAR = 0.15
"""Largest difference of two patterns of one word, as a fraction of their ink."""
MAX_FRAME_FILL = 0.2
"""Largest fraction of a box that the edges of a frame fill; those of a word or a picture fill more."""
MIN_FRAME = 12
"""Smallest height and width of a frame in pixels."""
CLUSTER_GAP = 20
"""Largest gap between two words of one cluster in pixels."""


@dataclass(frozen=True)
class Words:
    """Words of both images, without those whose pixels are all equal, and without those that left or entered the page.

    Args:
        before: boxes ``(N, 4)`` in the first image, from the top.
        after: boxes ``(M, 4)`` in the second image.
        partner: index of the same word in the second image, or -1, ``(N,)``.
        frames: boxes of borders in the first image ``(K, 4)``.
    """

    before: np.ndarray
    after: np.ndarray
    partner: np.ndarray
    frames: np.ndarray

    @cached_property
    def is_gone(self) -> np.ndarray:
        """Whether each word of the first image has no partner."""
        return self.partner < 0

    @cached_property
    def moves(self) -> np.ndarray:
        """Pixels to the right and down by which each word moved ``(N, 2)``; 0 for those without a partner."""
        moves = np.zeros((len(self.before), 2))
        paired = ~self.is_gone
        moves[paired] = self.after[self.partner[paired], :2] - self.before[paired, :2]
        return moves

    @cached_property
    def is_moved(self) -> np.ndarray:
        """Whether each word of the first image moved by more than a pixel."""
        moved: np.ndarray = np.abs(self.moves).max(1, initial=0) > 1
        return moved

    @cached_property
    def is_moved_first(self) -> np.ndarray:
        """Whether each word moved as far as the first one that moved."""
        if not self.is_moved.any():
            return self.is_moved
        first = self.moves[self.is_moved.argmax()]
        alike: np.ndarray = self.is_moved & (np.abs(self.moves - first).max(1) <= 1)
        return alike

    @cached_property
    def gone(self) -> np.ndarray:
        """Words of the first image without a partner."""
        return self.before[self.is_gone]

    @cached_property
    def new(self) -> np.ndarray:
        """Words of the second image without a partner."""
        return np.delete(self.after, self.partner[~self.is_gone], 0)


def match_words(before: np.ndarray, after: np.ndarray, core: Core) -> Words:
    """Find and match the words that contain changed pixels.

    Args:
        before: uint8 ``(3, H, W)``.
        after: image of the same shape.
        core: from :func:`~lightning_idc.models.web.core.find_core`.
    """
    height, width = before.shape[1:]
    x1, y1, x2, y2 = bounds(core.changed)
    x1, y1, x2, y2 = max(0, x1 - MARGIN), max(0, y1 - MARGIN), min(width, x2 + MARGIN), min(height, y2 + MARGIN)
    changed = core.changed[y1:y2, x1:x2]
    (first, inks, frames), (second, others, _) = (_words(image[:, y1:y2, x1:x2], changed) for image in (before, after))
    partner = _partners(first, second, inks, others)
    offset = np.array([x1, y1, x1, y1])
    words = Words(first + offset, second + offset, partner, frames + offset)
    return _without_strangers(words, height) if words.is_moved.any() else words


def clusters(boxes: np.ndarray) -> list[np.ndarray]:
    """Groups of boxes ``(N, 4)`` with small gaps, in the order of their first boxes."""
    wide = boxes + np.array([-1, -1, 1, 1]) * CLUSTER_GAP / 2
    low, high = (side(wide[:, None, k], wide[None, :, k]) for side, k in ((np.maximum, [0, 1]), (np.minimum, [2, 3])))
    count, labels = connected_components(csr_array((high > low).all(-1)), directed=False)
    return [boxes[labels == label] for label in range(count)]


def around(boxes: np.ndarray) -> PixelBox:
    """Box around boxes ``(N, 4)``."""
    (x1, y1), (x2, y2) = boxes[:, :2].min(0).tolist(), boxes[:, 2:].max(0).tolist()
    return x1, y1, x2, y2


def _words(image: np.ndarray, changed: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Boxes of the words with changed pixels ``(N, 4)``, their patterns ``(N, bins)``, and boxes of frames."""
    edge = np.zeros(image.shape[1:], bool)
    edge[:, 1:] = _differs(image[:, :, 1:], image[:, :, :-1])
    edge[1:] |= _differs(image[:, 1:], image[:, :-1])
    wide = edge.copy()
    for step in range(1, WORD_GAP + 1):
        wide[:, step:] |= edge[:, :-step]
    labels, count = ndimage.label(wide, np.ones((3, 3)))
    boxes = np.array([(x.start, y.start, x.stop, y.stop) for y, x in ndimage.find_objects(labels)], int).reshape(-1, 4)
    boxes[:, 2] = np.maximum(boxes[:, 2] - WORD_GAP, boxes[:, 0] + 1)
    sides = boxes[:, 2:] - boxes[:, :2]
    fill = np.bincount(labels.ravel(), minlength=count + 1)[1:] / np.maximum(1, sides.prod(1))
    is_frame = (fill < MAX_FRAME_FILL) & (sides.min(1, initial=MIN_FRAME) >= MIN_FRAME)
    is_touched = np.bincount(labels[changed], minlength=count + 1)[1:] > 0
    words = boxes[is_touched & ~is_frame & (sides.prod(1) >= MIN_AREA)][:MAX_WORDS]
    return words, _patterns(image, words), boxes[is_frame]


def _differs(image: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Whether pixels of two images differ by more than an edge; channel by channel, which is faster."""
    edge = np.zeros(image.shape[1:], bool)
    for one, two in zip(image, other, strict=True):
        edge |= np.maximum(one, two) - np.minimum(one, two) > MIN_EDGE
    return edge


def _patterns(image: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Share of the ink of each word in each part of its box, which fractions of a pixel hardly change."""
    grey = image.sum(0, dtype=np.int32)
    total = np.zeros(np.add(grey.shape, 1), np.int32)
    np.cumsum(grey.cumsum(0, dtype=np.int32), 1, out=total[1:, 1:])
    rows, columns = (
        np.rint(boxes[:, [k]] + (boxes[:, [k + 2]] - boxes[:, [k]]) * np.linspace(0, 1, count + 1)).astype(int)
        for k, count in zip((1, 0), BINS, strict=True)
    )
    cells = np.diff(np.diff(total[rows[:, :, None], columns[:, None, :]], axis=1), axis=2)
    areas = np.diff(rows, axis=1)[:, :, None] * np.diff(columns, axis=1)[:, None, :]
    ground = grey[np.maximum(boxes[:, 1] - 1, 0), np.maximum(boxes[:, 0] - 1, 0)]
    ink = np.abs(cells - ground[:, None, None] * areas).reshape(len(boxes), BINS[0] * BINS[1])
    pattern: np.ndarray = ink / np.maximum(ink.sum(1, keepdims=True), 1)
    return pattern


def _partners(first: np.ndarray, second: np.ndarray, inks: np.ndarray, others: np.ndarray) -> np.ndarray:
    partner = np.full(len(first), -1)
    sides = [boxes[:, 2:] - boxes[:, :2] for boxes in (first, second)]
    i, j = np.nonzero(np.abs(sides[0][:, None] - sides[1][None]).max(-1, initial=0) <= 1)
    is_alike = np.abs(inks[i] - others[j]).sum(1) / 2 < SIMILAR
    i, j = i[is_alike], j[is_alike]
    moves = second[j, :2] - first[i, :2]
    votes = _votes(moves, sides[0][i, 0]) - 1e-3 * np.abs(moves).sum(1)
    taken = np.zeros(len(second), bool)
    for pair in np.argsort(-votes, kind="stable"):
        if partner[i[pair]] < 0 and not taken[j[pair]]:
            partner[i[pair]], taken[j[pair]] = j[pair], True
    return partner


def _votes(moves: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Weight of all moves within a pixel of each move ``(K, 2)``, since layout rounds to whole pixels."""
    base = 1 << 16
    keys, index = np.unique(moves[:, 0] * base + moves[:, 1], return_inverse=True)
    counts = np.bincount(index, weights, len(keys))
    total = np.zeros(len(keys))
    for step in (right * base + down for right in (-1, 0, 1) for down in (-1, 0, 1)):
        near = np.minimum(np.searchsorted(keys, keys + step), max(0, len(keys) - 1))
        total += counts[near] * (keys[near] == keys + step)
    votes: np.ndarray = total[index]
    return votes


def _without_strangers(words: Words, height: int) -> Words:
    """Without words whose partner is beyond the upper or lower end of the page, by the largest move down or up."""
    down = words.moves[:, 1]
    shift = down[np.abs(down).argmax()]
    stays = ~words.is_gone | _within(words.before + shift, height)
    has_partner = np.isin(np.arange(len(words.after)), words.partner)
    remains = has_partner | _within(words.after - shift, height)
    partner = words.partner[stays]
    partner = np.where(partner >= 0, np.cumsum(remains)[partner] - 1, -1)
    return Words(words.before[stays], words.after[remains], partner, words.frames)


def _within(boxes: np.ndarray, height: int) -> np.ndarray:
    within: np.ndarray = (boxes[:, 1] > 1) & (boxes[:, 3] < height - 1)
    return within
