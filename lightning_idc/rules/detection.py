"""Detection: the regions in which two aligned images differ by more than the noise of the pair.

1. :func:`difference` compares each pixel with a small window of the other image, so that edges which moved by a
   fraction of a pixel do not count.
2. :func:`compare_pair` estimates the noise from the pair itself: re-encoding and resampling err in proportion to the
   local contrast, and changes are assumed to cover less than about half of the image.
3. :func:`regions_of` groups pixels above the threshold.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import ndimage

from lightning_idc.rules.windows import box_mean, pooled, smoothed, window_max, window_min

FLOOR = 6.0
"""Grey levels of a difference that are never a change."""
NOISE = 6.0
"""Threshold as a multiple of the estimated noise."""
BLOCK = 16
"""Side of the blocks that the noise is estimated on."""
QUIET = 0.4
"""Quantile of the blocks, ordered by their noise, that stands for blocks without a change."""
SEED = 2.0
"""A region has pixels of so many times the threshold."""
STRONG = 0.35
"""Height of the strong part of a region, as a fraction of its highest difference."""
PART = 0.15
"""Smallest separate part of a region, as a fraction of its largest part."""
MAX_PLACES = 3
"""Separate places at which more blocks may differ."""
THIN = 0.6
"""A wider window is used where it leaves at most this fraction of the changed pixels."""
SPREAD = 0.3
"""Fraction of the blocks with edges that may differ for their differences to count as a change at sight."""
MAX_RADIUS = 3
"""Largest radius of the window that pixels are compared with."""
MIN_AREA, MIN_SHARE = 6, 2e-5
"""Pixels of the smallest region, and their fraction of the image."""


@dataclass(frozen=True, slots=True)
class Component:
    """One connected group of changed pixels.

    Args:
        rows: Rows of the box.
        columns: Columns of the box.
        mask: Changed pixels within the box.
        score: Certainty from 0 to 1: how far the difference stands above the threshold.
    """

    rows: slice
    columns: slice
    mask: np.ndarray
    score: float

    @property
    def area(self) -> int:
        """Number of changed pixels."""
        return int(self.mask.sum())


def difference(before: np.ndarray, after: np.ndarray, radius: int) -> np.ndarray:
    """How far each pixel lies outside of the range of the other image's window, in grey levels, ``(H, W)``.

    Args:
        before: Uint8 ``(C, H, W)``.
        after: The same.
        radius: Size of the window.
    """
    outside = np.zeros(before.shape[1:], np.uint8)
    for one, other in ((before, after), (after, before)):
        top, bottom = window_max(other, radius), window_min(other, radius)
        for band in range(len(one)):
            np.maximum(outside, np.maximum(one[band], top[band]) - top[band], out=outside)
            np.maximum(outside, bottom[band] - np.minimum(one[band], bottom[band]), out=outside)
    return outside


def compare_pair(before: np.ndarray, after: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Difference and threshold of each pixel, and the radius of the window that was compared.

    Args:
        before: Float32 ``(C, H, W)``, aligned.
        after: The same.
        known: Pixels that both images show.
    """
    contrast = np.zeros(known.shape, np.uint8)
    for image in (before, after):
        shades = image.astype(np.uint8)
        np.maximum(contrast, (window_max(shades, 1) - window_min(shades, 1)).max(0), out=contrast)
    activity = contrast.astype(np.float32) / 2  # the sum of both gradients of a ramp
    exact = np.abs(after - before).max(0) * known
    if _is_exact(exact, activity):
        return exact, np.full(known.shape, FLOOR, np.float32), 0
    smooth = smoothed(before), smoothed(after)
    active = pooled(activity, BLOCK)
    values = difference(smooth[0], smooth[1], 1) * known
    radius = 1
    for wider in range(2, MAX_RADIUS + 1):
        tried = difference(smooth[0], smooth[1], wider) * known
        # edges that moved by more than the window vanish with the next one, and changes stay
        if float((tried > FLOOR).sum()) > THIN * float((values > FLOOR).sum()):
            break
        values, radius = tried, wider
    edges = active > 2
    ratio = (pooled(values, BLOCK) / (active + 4))[edges if edges.sum() >= 8 else np.ones_like(edges)]
    noise = float(np.quantile(ratio, QUIET))
    threshold = FLOOR + NOISE * noise * (window_max(box_mean(activity, 2), 2) + 4)
    return values.astype(np.float32), np.minimum(threshold, 80), radius


def _is_exact(difference: np.ndarray, activity: np.ndarray) -> bool:
    """Whether unchanged pixels are equal: most blocks, and also most blocks with edges, have no difference.

    JPEG leaves the flat parts of graphics as they are and errs at all edges.
    """
    blocks = pooled((difference > 0).astype(np.float32), BLOCK) > 0.02
    edges = pooled((activity > 8).astype(np.float32), BLOCK) > 0.02
    if blocks.mean() > 0.55:
        return False
    share = float(blocks[edges].mean()) if edges.sum() >= 4 else 0.0
    return share < SPREAD or (share < 2 * SPREAD and ndimage.label(blocks, np.ones((3, 3)))[1] <= MAX_PLACES)


def regions_of(values: np.ndarray, threshold: np.ndarray, radius: int) -> list[Component]:
    """Groups of changed pixels, each reduced to its strong part, the largest first.

    Edited pictures also differ weakly around an object, and objects throw shadows: the strong part is the object.

    Args:
        values: Difference ``(H, W)``.
        threshold: Threshold ``(H, W)``.
        radius: Radius of the window that was compared; 0 of a pair without noise, in which regions may be smaller.
    """
    smallest = max(MIN_AREA, round(MIN_SHARE * values.size)) if radius else 4
    side = max(2, round(max(values.shape) / 128))
    components = []
    for weak in _groups(values > threshold, side):
        box = (weak.rows, weak.columns)
        excess = (values[box] / threshold[box])[weak.mask]
        if len(excess) < smallest or np.partition(excess, -4)[-4] < SEED:
            continue
        heights = values[box][weak.mask]
        strong = min(max(2 * float(threshold[box][weak.mask].mean()), STRONG * float(np.quantile(heights, 0.95))),
                     float(np.quantile(heights, 0.7)))  # fmt: skip
        parts = _groups((values[box] >= strong) & weak.mask, side)
        largest = max(part.area for part in parts)
        for part in parts:
            if part.area < max(smallest / 2, PART * largest):
                continue
            local = (values[box] / threshold[box])[part.rows, part.columns][part.mask]
            rows = slice(weak.rows.start + part.rows.start, weak.rows.start + part.rows.stop)
            columns = slice(weak.columns.start + part.columns.start, weak.columns.start + part.columns.stop)
            components.append(Component(rows, columns, part.mask, float(1 - 1 / max(local.mean(), 1.0))))
    return sorted(components, key=lambda component: -component.area)


def _groups(mask: np.ndarray, side: int) -> list[Component]:
    """Groups of pixels that are at most about two cells apart.

    Args:
        mask: Pixels ``(H, W)``.
        side: Side of the cells.
    """
    height, width = mask.shape
    cells = np.pad(pooled(mask.astype(np.float32), side) > 0, 1)
    labels = ndimage.label(ndimage.binary_dilation(cells, np.ones((3, 3))), np.ones((3, 3)))[0][1:-1, 1:-1]
    groups = []
    for index, cell_box in enumerate(ndimage.find_objects(labels), 1):
        if cell_box is None:
            continue
        upper, left = (part.start * side for part in cell_box)
        inside = (labels[cell_box] == index).repeat(side, 0).repeat(side, 1)[: height - upper, : width - left]
        local = mask[upper : upper + inside.shape[0], left : left + inside.shape[1]] & inside
        rows, columns = (np.flatnonzero(local.any(axis)) for axis in (1, 0))
        if not len(rows):
            continue
        tight = local[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        top, first = upper + int(rows[0]), left + int(columns[0])
        groups.append(Component(slice(top, top + tight.shape[0]), slice(first, first + tight.shape[1]), tight, 0.0))
    return groups
