"""compare_moves: whether the changed pixels are those of the first image at another place, and how far they moved.

An element that moves takes its pixels along as they are, which glyphs of another size, weight, text or letter spacing
do not. The core and the words say little about it where the element lay over others or left the window in part, since
both are cut there; here each changed pixel is looked up at each distance along the line and down the page.
"""

from __future__ import annotations

import numpy as np

from lightning_idc.models.web.colors import color_codes
from lightning_idc.models.web.core import Core, bounds
from lightning_idc.utils.boxes import PixelBox

REACH = 48
"""Largest distance in pixels."""
MAX_PIXELS = 1000
"""Largest number of changed pixels that are looked up, evenly spaced."""
OTHER_MOVE = 2
"""Distance in pixels from the best move above which a move is another one."""
_STEPS = np.concatenate([np.arange(-REACH, 0), np.arange(1, REACH + 1)])
_MOVES = np.concatenate([np.stack([_STEPS, 0 * _STEPS], 1), np.stack([0 * _STEPS, _STEPS], 1)])


def compare_moves(before: np.ndarray, after: np.ndarray, core: Core) -> dict[str, float]:
    """Measures of the best move; the same names for every pair.

    Args:
        before: uint8 ``(3, H, W)``.
        after: image of the same shape.
        core: from :func:`~lightning_idc.models.web.core.find_core`.
    """
    left, top, right, bottom = bounds(core.changed)
    images = [_colors(image, (left, top, right, bottom)) for image in (before, after)]
    indices = np.flatnonzero(core.changed[top:bottom, left:right])
    indices = indices[np.linspace(0, len(indices) - 1, min(len(indices), MAX_PIXELS)).astype(int)]
    rows, columns = np.divmod(indices, right - left)
    width = images[0].shape[1]
    indices = (rows + REACH) * width + columns + REACH
    colors = [image.take(indices) for image in images]
    values, counts = np.unique(np.concatenate(colors), return_counts=True)
    is_mark = [color != values[counts.argmax()] for color in colors]  # the ground is the same everywhere
    steps = (_MOVES[:, 1] * width + _MOVES[:, 0])[:, None]
    gone = images[1].take(indices[is_mark[0]] + steps) == colors[0][is_mark[0]]  # (moves, pixels)
    new = images[0].take(indices[is_mark[1]] - steps) == colors[1][is_mark[1]]
    total = max(1, gone.shape[1] + new.shape[1])
    shares = (gone.sum(1) + new.sum(1)) / total
    best = int((shares - 1e-6 * np.abs(_MOVES).sum(1)).argmax())
    move = _MOVES[best]
    is_other = np.abs(_MOVES - move).sum(1) > OTHER_MOVE
    is_across = (_MOVES == 0).argmax(1) != (move == 0).argmax()
    return {
        "move_along": float(move[0]),
        "move_down": float(move[1]),
        "move_share": float(shares[best]),
        "move_gone": float(gone[best].mean()) if gone.shape[1] else 0.0,
        "move_new": float(new[best].mean()) if new.shape[1] else 0.0,
        "move_lead": float(shares[best] - shares[is_other].max()),
        "move_lead_across": float(shares[best] - shares[is_across].max()),
        "move_marks_gone": gone.shape[1] / total,
    }


def _colors(image: np.ndarray, box: PixelBox) -> np.ndarray:
    """One number for the color of each pixel of a box and of those within reach; -1 beyond the image."""
    left, top, right, bottom = box
    height, width = image.shape[1:]
    x1, y1, x2, y2 = max(0, left - REACH), max(0, top - REACH), min(width, right + REACH), min(height, bottom + REACH)
    colors = np.full((bottom - top + 2 * REACH, right - left + 2 * REACH), -1, np.int32)
    inside = slice(y1 - top + REACH, y2 - top + REACH), slice(x1 - left + REACH, x2 - left + REACH)
    colors[inside] = color_codes(image[:, y1:y2, x1:x2])
    return colors
