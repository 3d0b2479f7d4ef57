"""Detection: the regions in which two aligned images differ by more than the noise of the pair.

1. :func:`difference` compares each pixel with a small window of the other image, so that edges which moved by a
   fraction of a pixel do not count.
2. :func:`compare_pair` estimates the noise from the pair itself: errors of re-encoding and resampling are proportional
   to the local contrast, and changes are assumed to cover less than about half of the image.
3. :func:`regions_of` groups pixels above the threshold.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import ndimage

from lightning_idc.rules.windows import box_mean, pooled, smoothed, window_max, window_min

FLOOR = 6.0
"""Minimum difference of a change, in grey levels."""
NOISE = 6.0
"""Threshold as a multiple of the estimated noise."""
BLOCK = 16
"""Side of the blocks that the noise is estimated on."""
QUIET = 0.4
"""Quantile of the noise of blocks that is taken as the noise of unchanged blocks."""
SEED = 2.0
"""Minimum peak difference of a region, as a multiple of the threshold."""
STRONG = 0.35
"""Height of the strong part of a region, as a fraction of its highest difference."""
PART = 0.15
"""Smallest separate part of a region, as a fraction of its largest part."""
MAX_GROUPS = 3
"""Maximum number of connected groups of differing blocks for a larger fraction of differing blocks to be accepted."""
THIN = 0.6
"""A wider window is used if at most this fraction of the changed pixels remains."""
SPREAD = 0.3
"""Maximum fraction of differing blocks with edges for a pair without noise."""
MAX_RADIUS = 3
"""Maximum radius of the window for comparing pixels."""
MIN_AREA, MIN_FRACTION = 6, 2e-5
"""Minimum size of a region in pixels, and as a fraction of the image."""


@dataclass(frozen=True, slots=True)
class Component:
    """One connected group of changed pixels.

    Args:
        rows: Rows of the box.
        columns: Columns of the box.
        mask: Changed pixels within the box.
        score: Confidence from 0 to 1, by the ratio of the difference to the threshold.
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
    """Distance of each pixel to the value range of the other image's window, in grey levels, ``(H, W)``.

    Args:
        before: Uint8 ``(C, H, W)``.
        after: The same.
        radius: Radius of the window.
    """
    outside = np.zeros(before.shape[1:], np.uint8)
    for one, other in ((before, after), (after, before)):
        top, bottom = window_max(other, radius), window_min(other, radius)
        for band in range(len(one)):
            np.maximum(outside, np.maximum(one[band], top[band]) - top[band], out=outside)
            np.maximum(outside, bottom[band] - np.minimum(one[band], bottom[band]), out=outside)
    return outside


def compare_pair(before: np.ndarray, after: np.ndarray, valid: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Difference and threshold of each pixel, and the radius of the comparison window.

    Args:
        before: Float32 ``(C, H, W)``, aligned.
        after: The same.
        valid: Mask ``(H, W)`` of pixels in the view of both images.
    """
    contrast = np.zeros(valid.shape, np.uint8)
    for image in (before, after):
        shades = image.astype(np.uint8)
        np.maximum(contrast, (window_max(shades, 1) - window_min(shades, 1)).max(0), out=contrast)
    activity = contrast.astype(np.float32) / 2  # the sum of both gradients of a ramp
    exact = np.abs(after - before).max(0) * valid
    if _is_exact(exact, activity):
        return exact, np.full(valid.shape, FLOOR, np.float32), 0
    smooth = smoothed(before), smoothed(after)
    active = pooled(activity, BLOCK)
    values = difference(smooth[0], smooth[1], 1) * valid
    radius = 1
    for wider in range(2, MAX_RADIUS + 1):
        tried = difference(smooth[0], smooth[1], wider) * valid
        # edges that moved by more than the window vanish with a wider one, but changes remain
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

    JPEG preserves flat parts of graphics but has errors at all edges.
    """
    blocks = pooled((difference > 0).astype(np.float32), BLOCK) > 0.02
    edges = pooled((activity > 8).astype(np.float32), BLOCK) > 0.02
    if blocks.mean() > 0.55:
        return False
    fraction = float(blocks[edges].mean()) if edges.sum() >= 4 else 0.0
    return fraction < SPREAD or (fraction < 2 * SPREAD and ndimage.label(blocks, np.ones((3, 3)))[1] <= MAX_GROUPS)


def regions_of(values: np.ndarray, threshold: np.ndarray, radius: int) -> list[Component]:
    """Groups of changed pixels, each reduced to its strong part, the largest first.

    Edited images also differ weakly around an object, and objects cast shadows: the strong part is the object.

    Args:
        values: Difference ``(H, W)``.
        threshold: Threshold ``(H, W)``.
        radius: Radius of the comparison window; 0 for a pair without noise, in which regions may be smaller.
    """
    smallest = max(MIN_AREA, round(MIN_FRACTION * values.size)) if radius else 4
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
