"""Detection: finds the regions in which two aligned images differ by more than the noise of the pair.

1. :func:`difference` compares each pixel with a small window of the other image, so that edges that moved by a
   fraction of a pixel do not count.
2. :func:`compare_pair` estimates the noise from the pair itself: errors of re-encoding and resampling are proportional
   to the local contrast, and changes are assumed to cover less than about half of the image.
3. :func:`find_regions` groups pixels above the threshold.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import ndimage

from lightning_idc.rules.windows import box_mean, pooled, smoothed, window_max, window_min

MIN_DIFFERENCE = 6.0
"""Minimum difference of a change, in grey levels."""
NOISE_MULTIPLE = 6.0
"""Threshold as a multiple of the estimated noise."""
BLOCK = 16
"""Side in pixels of the blocks on which the noise is estimated."""
NOISE_QUANTILE = 0.4
"""Quantile over the blocks that estimates the noise of unchanged blocks."""
MIN_PEAK = 2.0
"""Minimum peak difference of a region, as a multiple of the threshold."""
STRONG_FRACTION = 0.35
"""Height of the strong part of a region, as a fraction of its highest difference."""
MIN_PART = 0.15
"""Smallest separate part of a region, as a fraction of its largest part."""
MAX_GROUPS = 3
"""Maximum number of groups of differing blocks for which :data:`MAX_DIFFERING_EDGES` is doubled."""
MAX_REMAINING = 0.6
"""The window is widened as long as at most this fraction of the differing pixels remains."""
MAX_DIFFERING_EDGES = 0.3
"""Maximum fraction of blocks with edges that differ in a pair without noise."""
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
    """Compute the distance ``(H, W)`` of each pixel to the value range of the other image's window, in grey levels.

    Args:
        before: Uint8 ``(C, H, W)``.
        after: Image of the same shape.
        radius: Radius of the window.
    """
    outside = np.zeros(before.shape[1:], np.uint8)
    for image, other in ((before, after), (after, before)):
        top, bottom = window_max(other, radius), window_min(other, radius)
        for band in range(len(image)):
            np.maximum(outside, np.maximum(image[band], top[band]) - top[band], out=outside)
            np.maximum(outside, bottom[band] - np.minimum(image[band], bottom[band]), out=outside)
    return outside


def compare_pair(before: np.ndarray, after: np.ndarray, valid: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Compute the difference and the threshold of each pixel, and choose the radius of the comparison window.

    Args:
        before: Float32 ``(C, H, W)``, aligned.
        after: Image of the same shape.
        valid: Mask ``(H, W)`` of pixels in the view of both images.
    """
    contrast = np.zeros(valid.shape, np.uint8)
    for image in (before, after):
        levels = image.astype(np.uint8)
        np.maximum(contrast, (window_max(levels, 1) - window_min(levels, 1)).max(0), out=contrast)
    activity = contrast.astype(np.float32) / 2  # the sum of both gradients of a ramp
    exact = np.abs(after - before).max(0) * valid
    if _is_exact(exact, activity):
        return exact, np.full(valid.shape, MIN_DIFFERENCE, np.float32), 0
    smoothed_pair = smoothed(before), smoothed(after)
    active = pooled(activity, BLOCK)
    values = difference(smoothed_pair[0], smoothed_pair[1], 1) * valid
    radius = 1
    for wider in range(2, MAX_RADIUS + 1):
        widened = difference(smoothed_pair[0], smoothed_pair[1], wider) * valid
        # edges that moved by more than the window vanish with a wider one, but changes remain
        if float((widened > MIN_DIFFERENCE).sum()) > MAX_REMAINING * float((values > MIN_DIFFERENCE).sum()):
            break
        values, radius = widened, wider
    edges = active > 2  # blocks with edges
    ratio = (pooled(values, BLOCK) / (active + 4))[edges if edges.sum() >= 8 else np.ones_like(edges)]
    noise = float(np.quantile(ratio, NOISE_QUANTILE))
    threshold = MIN_DIFFERENCE + NOISE_MULTIPLE * noise * (window_max(box_mean(activity, 2), 2) + 4)
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
    return fraction < MAX_DIFFERING_EDGES or (
        fraction < 2 * MAX_DIFFERING_EDGES and ndimage.label(blocks, np.ones((3, 3)))[1] <= MAX_GROUPS
    )


def find_regions(values: np.ndarray, threshold: np.ndarray, radius: int) -> list[Component]:
    """Group changed pixels into regions, each reduced to its strong part, the largest first.

    Edited images also differ weakly around an object, and objects cast shadows; the strong part is the object.

    Args:
        values: Difference ``(H, W)``.
        threshold: Threshold ``(H, W)``.
        radius: Radius of the comparison window; 0 for a pair without noise, in which regions may be smaller.
    """
    min_area = max(MIN_AREA, round(MIN_FRACTION * values.size)) if radius else 4
    cell_size = max(2, round(max(values.shape) / 128))
    components = []
    for weak in _groups(values > threshold, cell_size):
        box = (weak.rows, weak.columns)
        excess = (values[box] / threshold[box])[weak.mask]
        if len(excess) < min_area or np.partition(excess, -4)[-4] < MIN_PEAK:
            continue
        heights = values[box][weak.mask]
        peak, upper = float(np.quantile(heights, 0.95)), float(np.quantile(heights, 0.7))
        strong = min(max(2 * float(threshold[box][weak.mask].mean()), STRONG_FRACTION * peak), upper)
        parts = _groups((values[box] >= strong) & weak.mask, cell_size)
        largest = max(part.area for part in parts)
        for part in parts:
            if part.area < max(min_area / 2, MIN_PART * largest):
                continue
            local = (values[box] / threshold[box])[part.rows, part.columns][part.mask]
            rows = slice(weak.rows.start + part.rows.start, weak.rows.start + part.rows.stop)
            columns = slice(weak.columns.start + part.columns.start, weak.columns.start + part.columns.stop)
            components.append(Component(rows, columns, part.mask, float(1 - 1 / max(local.mean(), 1.0))))
    return sorted(components, key=lambda component: -component.area)


def boxes_of(mask: np.ndarray, max_boxes: int = 12) -> list[list[int]]:
    """Boxes x1 y1 x2 y2 around groups of pixels, the largest group first.

    Args:
        mask: Pixels, bool ``(H, W)``.
        max_boxes: Maximum number of boxes.
    """
    groups = sorted(_groups(mask, max(2, round(max(mask.shape) / 128))), key=lambda group: -group.area)
    return [
        [group.columns.start, group.rows.start, group.columns.stop, group.rows.stop] for group in groups[:max_boxes]
    ]


def _groups(mask: np.ndarray, cell_size: int) -> list[Component]:
    """Group pixels that are at most about two cells apart.

    Args:
        mask: Pixels ``(H, W)``.
        cell_size: Side of the cells in pixels.
    """
    height, width = mask.shape
    cells = np.pad(pooled(mask.astype(np.float32), cell_size) > 0, 1)
    labels = ndimage.label(ndimage.binary_dilation(cells, np.ones((3, 3))), np.ones((3, 3)))[0][1:-1, 1:-1]
    groups = []
    for index, cell_box in enumerate(ndimage.find_objects(labels), 1):
        if cell_box is None:
            continue
        upper, left = (part.start * cell_size for part in cell_box)
        inside = (labels[cell_box] == index).repeat(cell_size, 0).repeat(cell_size, 1)[: height - upper, : width - left]
        local = mask[upper : upper + inside.shape[0], left : left + inside.shape[1]] & inside
        rows, columns = (np.flatnonzero(local.any(axis)) for axis in (1, 0))
        if not len(rows):
            continue
        tight = local[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        top, first = upper + int(rows[0]), left + int(columns[0])
        groups.append(Component(slice(top, top + tight.shape[0]), slice(first, first + tight.shape[1]), tight, 0.0))
    return groups
