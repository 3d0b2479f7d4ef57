"""Parallax: aligns regions separately, because a moving camera shifts objects at different depths by different amounts.

No single motion aligns such a pair. Each region is therefore aligned separately, and remains changed only where the
content still differs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy import fft

from lightning_idc.rules.detection import BLOCK, Component, difference
from lightning_idc.rules.kinds import window_of
from lightning_idc.rules.windows import gradients, pooled, smoothed

MAX_PARALLAX = 0.07
"""Maximum parallax as a fraction of a side."""
MIN_DIFFERING_EDGES = 0.5
"""Minimum fraction of differing blocks with edges if the camera moved."""
MIN_REMAINING = 0.3
"""Minimum fraction of a region that must still differ after alignment."""
MARGIN = 16
"""Width in pixels of the surroundings used for alignment."""


def camera_moved(values: np.ndarray, threshold: np.ndarray, after: np.ndarray) -> bool:
    """Whether edges differ nearly everywhere, which indicates camera motion.

    Args:
        values: Difference ``(H, W)``.
        threshold: Threshold ``(H, W)``.
        after: Float32 ``(3, H, W)``.
    """
    gradient = np.abs(gradients(after.mean(0))).max(0)
    edges = pooled((gradient > 6).astype(np.float32), BLOCK) > 0.03
    if edges.sum() < 6:
        return False
    return float((pooled((values > threshold).astype(np.float32), BLOCK)[edges] > 0.02).mean()) > MIN_DIFFERING_EDGES


def realign(
    before: np.ndarray, after: np.ndarray, component: Component, threshold: np.ndarray, radius: int
) -> tuple[np.ndarray, Component | None]:
    """Align one region separately.

    Args:
        before: Float32 ``(3, H, W)``, globally aligned.
        after: Image of the same shape.
        component: Changed region.
        threshold: Threshold ``(H, W)``.
        radius: Radius of the comparison window.

    Returns:
        The before image shifted so that the region fits best, and the part of the region that still differs; None if
        it does not differ.
    """
    size = before.shape[1:]
    window = window_of(component, size, MARGIN)
    dx, dy = _local_shift(before, after, window)
    shifted = np.roll(before, (dy, dx), (1, 2))
    first, second = (smoothed(image[:, window[0], window[1]]) for image in (shifted, after))
    values = difference(first, second, radius)
    row, column = component.rows.start - window[0].start, component.columns.start - window[1].start
    inner = (slice(row, row + component.mask.shape[0]), slice(column, column + component.mask.shape[1]))
    remaining = component.mask & (values[inner] > threshold[component.rows, component.columns])
    remains = float(remaining.sum()) > MIN_REMAINING * component.area
    return shifted, replace(component, mask=remaining) if remains else None


def _local_shift(before: np.ndarray, after: np.ndarray, window: tuple[slice, slice]) -> tuple[int, int]:
    """Compute the shift that maximises the correlation of both images' gradients within a window."""
    first, second = (np.stack(gradients(image[:, window[0], window[1]].mean(0))) for image in (before, after))
    shape = [fft.next_fast_len(2 * side, real=True) for side in first.shape[1:]]
    spectra = [fft.rfft2(slopes, s=shape) for slopes in (first, second)]
    surface = fft.irfft2((spectra[0].conj() * spectra[1]).sum(0), s=shape)
    limits = [max(2, round(MAX_PARALLAX * max(before.shape[1:])))] * 2
    rows, columns = (np.arange(-limit, limit + 1) for limit in limits)
    near = surface[np.ix_(rows % shape[0], columns % shape[1])]
    row, column = divmod(int(near.argmax()), len(columns))
    return int(columns[column]), int(rows[row])
