"""Movement: regions whose content is at another position in the other image.

The old and the new position are either two regions (:func:`same_content`, :func:`refine_shift`), or overlap in one
region (:func:`shift_within`).
"""

from __future__ import annotations

import numpy as np
from scipy import fft

from lightning_idc.rules.detection import Component
from lightning_idc.rules.kinds import MARGIN, Traits, mask_within, window_of
from lightning_idc.rules.windows import gradients, window_max

MIN_SHIFT = 2
"""Minimum movement in pixels."""
MIN_EDGES = 0.55
"""Minimum correlation of vanished and new edges to be the same edges."""
MAX_PIXELS = 1500
"""Maximum number of pixels of an object that are compared at each position."""


def same_content(left: Traits, entered: Traits, areas: tuple[int, int]) -> float:
    """Similarity of the content of two regions, from 0 to 1.

    Args:
        left: Measurements of the old region.
        entered: Measurements of the new region.
        areas: Changed pixels of both regions.
    """
    if not 0.3 < areas[0] / areas[1] < 3.3:
        return 0.0
    return float(np.minimum(left.before, entered.after).sum())


def refine_shift(
    before: np.ndarray, after: np.ndarray, left: Component, guess: tuple[int, int]
) -> tuple[tuple[int, int], float]:
    """The best shift near a guess for the content of a region of the before image.

    Args:
        before: Float32 ``(3, H, W)``.
        after: The same.
        left: Region that the object left.
        guess: Initial shift in pixels to the right and down.

    Returns:
        The shift, and its mean difference as a fraction of that without a shift.
    """
    height, width = before.shape[1:]
    window = window_of(left, (height, width), 2)
    rows, columns = np.nonzero(window_max(mask_within(left, window).view(np.uint8), 2))
    step = max(1, len(rows) // MAX_PIXELS)
    rows, columns = rows[::step] + window[0].start, columns[::step] + window[1].start
    content = before[:, rows, columns]
    zero_difference = float(np.abs(content - after[:, rows, columns]).mean()) + 1e-6

    def difference(dx: int, dy: int) -> float:
        to_rows, to_columns = np.clip(rows + dy, 0, height - 1), np.clip(columns + dx, 0, width - 1)
        return float(np.abs(content - after[:, to_rows, to_columns]).mean())

    reach = max(4, min(12, min(left.mask.shape) // 4))
    best = min(((dx, dy) for dx in range(-reach, reach + 1, 2) for dy in range(-reach, reach + 1, 2)),
               key=lambda shift: difference(guess[0] + shift[0], guess[1] + shift[1]))  # fmt: skip
    around = [(guess[0] + best[0] + dx, guess[1] + best[1] + dy) for dx in (-1, 0, 1) for dy in (-1, 0, 1)]
    shift = min(around, key=lambda candidate: difference(*candidate))
    return shift, difference(*shift) / zero_difference


def shift_within(before: np.ndarray, after: np.ndarray, component: Component) -> tuple[int, int] | None:
    """Shift of an object whose old and new positions are in one region; None if nothing moved.

    Args:
        before: Float32 ``(3, H, W)``.
        after: The same.
        component: Region with both positions.
    """
    window = window_of(component, before.shape[1:], MARGIN)
    one, two = before[:, window[0], window[1]], after[:, window[0], window[1]]
    mask = window_max(mask_within(component, window).view(np.uint8), 2).view(bool)
    vanished, new = _edges(one.mean(0), two.mean(0), mask)
    energy = [float((edges**2).sum()) for edges in (vanished, new)]
    if min(energy) < 0.3 * max(energy) or min(energy) < 200:
        return None
    shape = [fft.next_fast_len(2 * side, real=True) for side in mask.shape]
    spectra = [fft.rfft2(edges, s=shape) for edges in (vanished, new)]
    surface = fft.irfft2((spectra[0].conj() * spectra[1]).sum(0), s=shape)
    row, column = divmod(int(surface.argmax()), shape[1])
    dy, dx = row - shape[0] * (row > shape[0] // 2), column - shape[1] * (column > shape[1] // 2)
    if float(surface.max()) < MIN_EDGES * np.sqrt(energy[0] * energy[1]) or max(abs(dx), abs(dy)) < MIN_SHIFT:
        return None
    return (dx, dy) if _explained(one, two, mask, (dx, dy)) > 0.6 else None


def _edges(before: np.ndarray, after: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gradients ``(2, H, W)`` of the before image that the after image lacks, and the other way round."""
    one, two = np.stack(gradients(before)), np.stack(gradients(after))
    differs = (np.hypot(*(two - one)) > 8) & mask
    return one * (differs & (np.hypot(*one) > np.hypot(*two))), two * (differs & (np.hypot(*two) > np.hypot(*one)))


def _explained(before: np.ndarray, after: np.ndarray, mask: np.ndarray, shift: tuple[int, int]) -> float:
    """Fraction of the changed pixels with equal content at the shifted position of the other image."""
    dx, dy = shift
    height, width = mask.shape
    changed = (np.abs(after - before).max(0) > 20) & mask
    rows, columns = np.nonzero(changed)
    if not len(rows):
        return 0.0
    fits = np.zeros(len(rows), bool)
    for source, other, sign in ((before, after, 1), (after, before, -1)):
        to_rows, to_columns = rows + sign * dy, columns + sign * dx
        inside = (to_rows >= 0) & (to_rows < height) & (to_columns >= 0) & (to_columns < width)
        target = other[:, np.clip(to_rows, 0, height - 1), np.clip(to_columns, 0, width - 1)]
        fits |= inside & (np.abs(source[:, rows, columns] - target).max(0) < 20)
    return float(fits.mean())
