"""compare_words: how the words around a change moved, and how those that went differ from the new ones, in numbers."""

from __future__ import annotations

import numpy as np

from lightning_idc.models.web.words import Words, around, clusters

MIN_RANGE = 20
"""Smallest distance in pixels between words whose moves grow with their position."""
FEW = 12
"""Number of words that are compared one by one."""
TALL = 80
"""Percentile of the heights of words, most of which have no ascender."""


def compare_words(words: Words) -> dict[str, float]:
    """Measures of the words; the same names for every pair."""
    return _moves(words) | _exchanged(words) | _parts(words)


def _moves(words: Words) -> dict[str, float]:
    """How many words moved, how far, and whether the distance grows along the line or down the page."""
    paired = ~words.is_gone
    positions, moves = words.before[paired], words.moves[paired]
    along, down = moves.T if len(moves) else np.zeros((2, 1))
    moving = np.flatnonzero(words.is_moved[paired])
    first, last = (moving[0], moving[-1]) if len(moving) else (0, 0)
    kinds, counts = np.unique(moves[moving], axis=0, return_counts=True)
    top = kinds[counts.argmax()] if len(counts) else np.zeros(2)
    return {
        "words": np.log1p(len(words.before)),
        "words_paired": len(moves) / max(1, len(words.before)),
        "words_still": 1 - len(moving) / len(moves) if len(moves) else 0.0,
        "words_along": float((np.abs(along) > 1).mean()),
        "words_down": float((np.abs(down) > 1).mean()),
        "words_moves": np.log1p(len(counts)),
        "words_one_move": counts.max() / len(moving) if len(counts) else 0.0,
        "word_top_along": float(top[0]),
        "word_top_down": float(top[1]),
        "word_first_along": float(along[first]),
        "word_first_down": float(down[first]),
        "word_last_along": float(along[last]),
        "word_last_down": float(down[last]),
        "word_along_spread": float(along.std()),
        "word_down_spread": float(down.std()),
        "word_along_slope": _slope(positions[:, 0], along),
        "word_down_slope": _slope(positions[:, 1], down),
    }


def _slope(positions: np.ndarray, moves: np.ndarray) -> float:
    """Pixels by which words move further for 100 pixels of distance."""
    if len(positions) < 3 or np.ptp(positions) < MIN_RANGE:
        return 0.0
    return float(np.polyfit(positions, moves, 1)[0]) * 100


def _exchanged(words: Words) -> dict[str, float]:
    """Sizes of the words that went and of those that came, together and the n-th with the n-th."""
    gone, new = words.gone, words.new
    sides = [(boxes[:, 2:] - boxes[:, :2]).astype(float) if len(boxes) else np.zeros((1, 2)) for boxes in (gone, new)]
    count = min(len(gone), len(new), FEW)
    ratios = np.log((sides[1][:count] + 1) / (sides[0][:count] + 1)) if count else np.zeros((1, 2))
    widths = [float(side[:, 0].sum()) for side in sides]
    tall = [float(np.percentile(side[:, 1], TALL)) for side in sides]
    above = words.before[:, 1] < gone[0, 1] - 2 if len(gone) else np.ones(len(words.before), bool)
    return {
        "gone_words": np.log1p(len(gone)),
        "new_words": np.log1p(len(new)),
        "gone_share": len(gone) / max(1, len(words.before)),
        "new_share": len(new) / max(1, len(words.after)),
        "gone_only": float(bool(len(gone)) and not len(new)),
        "new_more": _log_ratio(len(gone), len(new)),
        "gone_width": np.log1p(widths[0]),
        "gone_height": tall[0],
        "gone_to_new_width": _log_ratio(*widths),
        "gone_to_new_height": _log_ratio(*tall) if count else 0.0,
        "word_width_ratio": float(np.median(ratios[:, 0])),
        "word_height_ratio": float(np.median(ratios[:, 1])),
        "word_width_spread": float(ratios[:, 0].std()),
        "word_height_spread": float(ratios[:, 1].std()),
        "words_above_gone": float(above.mean()) if len(above) else 0.0,
    }


def _parts(words: Words) -> dict[str, float]:
    """The first cluster of words that went, and the first one of those that came."""
    gone, new = (clusters(boxes)[0] if len(boxes) else np.zeros((0, 4)) for boxes in (words.gone, words.new))
    first, second = (np.array(around(part) if len(part) else (0, 0, 0, 0), float) for part in (gone, new))
    change = second - first if len(gone) and len(new) else np.zeros(4)
    width, height = first[2:] - first[:2]
    return {
        "part_words": _log_ratio(len(gone), len(new)),
        "part_width": np.log1p(width),
        "part_height": np.log1p(height),
        "part_wider": _log_ratio(width, width + change[2] - change[0]),
        "part_taller": _log_ratio(height, height + change[3] - change[1]),
        "part_left": float(change[0]),
        "part_top": float(change[1]),
        "part_share": len(gone) / max(1, len(words.gone)),
    }


def _log_ratio(old: float, new: float) -> float:
    return float(np.log((new + 1) / (old + 1)))
