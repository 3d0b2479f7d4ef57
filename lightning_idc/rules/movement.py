"""Movement: finds regions whose content is at another position in the other image.

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
"""Minimum correlation of vanished and appeared edges of a moved object."""
MAX_PIXELS = 1500
"""Maximum number of pixels of an object that are compared at each position."""


def same_content(source: Traits, destination: Traits, areas: tuple[int, int]) -> float:
    """Compute the similarity of the content of two regions, from 0 to 1.

    Args:
        source: Measurements of the old region.
        destination: Measurements of the new region.
        areas: Changed pixels of both regions.
    """
    if not 0.3 < areas[0] / areas[1] < 3.3:
        return 0.0
    return float(np.minimum(source.before, destination.after).sum())


def refine_shift(
    before: np.ndarray, after: np.ndarray, source: Component, guess: tuple[int, int]
) -> tuple[tuple[int, int], float]:
    """Search for the best shift of the content of a region, near a guess.

    Args:
        before: Float32 ``(3, H, W)``.
        after: Image of the same shape.
        source: Old region of the object.
        guess: Initial shift in pixels to the right and down.

    Returns:
        The shift, and its mean difference divided by the mean difference without a shift.
    """
    height, width = before.shape[1:]
    window = window_of(source, (height, width), 2)
    rows, columns = np.nonzero(window_max(mask_within(source, window).view(np.uint8), 2))
    step = max(1, len(rows) // MAX_PIXELS)
    rows, columns = rows[::step] + window[0].start, columns[::step] + window[1].start
    pixels = before[:, rows, columns]
    zero_difference = float(np.abs(pixels - after[:, rows, columns]).mean()) + 1e-6

    def difference(dx: int, dy: int) -> float:
        to_rows, to_columns = np.clip(rows + dy, 0, height - 1), np.clip(columns + dx, 0, width - 1)
        return float(np.abs(pixels - after[:, to_rows, to_columns]).mean())

    search_radius = max(4, min(12, min(source.mask.shape) // 4))
    # every second pixel of the neighbourhood first, then the neighbours of the best one
    steps = range(-search_radius, search_radius + 1, 2)
    coarse_shifts = [(guess[0] + dx, guess[1] + dy) for dx in steps for dy in steps]
    coarse = min(coarse_shifts, key=lambda candidate: difference(*candidate))
    fine_shifts = [(coarse[0] + dx, coarse[1] + dy) for dx in (-1, 0, 1) for dy in (-1, 0, 1)]
    shift = min(fine_shifts, key=lambda candidate: difference(*candidate))
    return shift, difference(*shift) / zero_difference


def shift_within(before: np.ndarray, after: np.ndarray, component: Component) -> tuple[int, int] | None:
    """Estimate the shift of an object whose old and new positions are in one region; None if no object moved.

    Args:
        before: Float32 ``(3, H, W)``.
        after: Image of the same shape.
        component: Region with both positions.
    """
    window = window_of(component, before.shape[1:], MARGIN)
    first, second = before[:, window[0], window[1]], after[:, window[0], window[1]]
    mask = window_max(mask_within(component, window).view(np.uint8), 2).view(bool)
    vanished, appeared = _edges(first.mean(0), second.mean(0), mask)
    energy = [float((edges**2).sum()) for edges in (vanished, appeared)]
    if min(energy) < 0.3 * max(energy) or min(energy) < 200:
        return None
    shape = [fft.next_fast_len(2 * side, real=True) for side in mask.shape]
    spectra = [fft.rfft2(edges, s=shape) for edges in (vanished, appeared)]
    surface = fft.irfft2((spectra[0].conj() * spectra[1]).sum(0), s=shape)
    row, column = divmod(int(surface.argmax()), shape[1])
    dy, dx = row - shape[0] * (row > shape[0] // 2), column - shape[1] * (column > shape[1] // 2)
    if float(surface.max()) < MIN_EDGES * np.sqrt(energy[0] * energy[1]) or max(abs(dx), abs(dy)) < MIN_SHIFT:
        return None
    return (dx, dy) if _explained_fraction(first, second, mask, (dx, dy)) > 0.6 else None


def _edges(before: np.ndarray, after: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the gradients ``(2, H, W)`` that are only in the before image, and those only in the after image."""
    first, second = np.stack(gradients(before)), np.stack(gradients(after))
    differs = (np.hypot(*(second - first)) > 8) & mask
    return first * (differs & (np.hypot(*first) > np.hypot(*second))), second * (
        differs & (np.hypot(*second) > np.hypot(*first))
    )


def _explained_fraction(before: np.ndarray, after: np.ndarray, mask: np.ndarray, shift: tuple[int, int]) -> float:
    """Compute the fraction of changed pixels whose content is at the shifted position in the other image."""
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
