"""Compare sharp details of two aligned images to find changed objects without a hue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from lightning_idc.synthesis.models.base import Region
from lightning_idc.synthesis.models.ground import resized

_SIDE = 128
"""Longer side, in pixels, to which images are resized for comparison; unit of all lengths below."""
_DETAIL, _MORE_DETAIL = 0.02, 2.5
"""Minimum strength of sharp detail, and its minimum ratio to that in the other image."""
_MIN_AREA = 1 / 400
"""Minimum area of a region as a fraction of the image."""
_MIN_GRADIENT_DISTANCE, _MAX_EXTENSION = 0.045, 4
"""Minimum distance of gradients for a change, and maximum ratio of its area to that of the contour."""


def one_sided_details(before: Tensor, after: Tensor) -> list[Region]:
    """Find regions with sharp detail in only one image: added or removed objects rather than soft shadows.

    Args:
        before: uint8 ``(3, H, W)``.
        after: uint8 ``(3, H, W)``.
    """
    details = [detail_of(image) for image in (before, after)]
    regions = []
    for side, (detail, other) in enumerate(zip(details, reversed(details), strict=True)):
        for mask in _filled_parts((detail > _DETAIL) & (detail > _MORE_DETAIL * dilate(other, 3))):
            if mask.sum() >= _MIN_AREA * mask.size:
                confidence = 1 - min(float(other[mask].sum() / detail[mask].sum()), 1.0)
                regions.append(region_of(mask, before.shape[1:], confidence, side))
    return regions


def extend_contours(regions: Sequence[Region], before: Tensor, after: Tensor) -> list[Region]:
    """Extend contours, which end where the brightness is equal, to the area in which brightness gradients differ.

    Args:
        regions: regions with masks.
        before: uint8 ``(3, H, W)``.
        after: uint8 ``(3, H, W)``.
    """
    extents = [
        region_of(mask, before.shape[1:], 0.0)
        for mask in _filled_parts(_gradient_distance(before, after) > _MIN_GRADIENT_DISTANCE)
    ]
    extended: list[Region] = []
    for region in regions:
        candidates = [
            extent
            for extent in extents
            if covered_fraction(region, inside(extent)) > 0.5 and _area(extent) < _MAX_EXTENSION * _area(region)
        ]
        best = max(candidates, key=lambda extent: covered_fraction(region, inside(extent)), default=None)
        if best is None:
            extended.append(region)
        elif all(best.box != other.box for other in extended):
            extended.append(Region(best.box, region.confidence, best.mask, region.image_index))
    return extended


def detail_of(image: Tensor) -> np.ndarray:
    """Compute the strength of sharp detail in log brightness, ``(H, W)``; soft shadows have none.

    Args:
        image: uint8 ``(3, H, W)``.
    """
    import cv2

    light = _light(image)
    return np.sqrt(cv2.GaussianBlur((light - cv2.GaussianBlur(light, (0, 0), 1.0)) ** 2, (0, 0), 0.8))


def _gradient_distance(before: Tensor, after: Tensor) -> np.ndarray:
    """Compute the distance between the log brightness gradients of two images, ``(H, W)``."""
    import cv2

    slopes = []
    for image in (before, after):
        light = cv2.GaussianBlur(_light(image), (0, 0), 0.7)
        slopes.append([cv2.Sobel(light, cv2.CV_32F, dx, 1 - dx, scale=1 / 8) for dx in (1, 0)])
    distance = np.hypot(slopes[0][0] - slopes[1][0], slopes[0][1] - slopes[1][1])
    return np.asarray(cv2.GaussianBlur(distance, (0, 0), 1.0))


def _light(image: Tensor) -> np.ndarray:
    return np.asarray(np.log(resized(image.float().mean(0).numpy(), _SIDE) + 8))


def dilate(values: np.ndarray, window_size: int) -> np.ndarray:
    """Dilate values ``(H, W)``: maximum over a window of ``window_size`` x ``window_size`` pixels."""
    import cv2

    return np.asarray(cv2.dilate(values, np.ones((window_size, window_size), np.uint8)))


def _filled_parts(mask: np.ndarray) -> list[np.ndarray]:
    """Split a mask of outlines into filled parts, eroded by the pixel by which detail exceeds an outline."""
    import cv2

    window_size = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (7, 7))
    closed = cv2.morphologyEx(mask.astype(np.uint8), cv2.MORPH_CLOSE, window_size)
    outlines, _ = cv2.findContours(closed, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    filled = cv2.drawContours(np.zeros_like(closed), outlines, -1, 1, -1)
    filled = cv2.erode(cv2.morphologyEx(filled, cv2.MORPH_OPEN, np.ones((3, 3), np.uint8)), np.ones((3, 3), np.uint8))
    count, parts = cv2.connectedComponents(filled)
    return [parts == number for number in range(1, count)]


def region_of(mask: np.ndarray, size: Sequence[int], confidence: float, side: int | None = None) -> Region:
    """Convert a mask of a resized image to a region of the original image.

    Args:
        mask: bool ``(h, w)``.
        size: height and width of the original image.
        confidence: confidence, clipped to 1.
        side: image of the pair, 0 or 1; None for both.
    """
    import cv2

    full = cv2.resize(mask.astype(np.uint8), (size[1], size[0]), interpolation=cv2.INTER_AREA) > 0
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    # the sides of the resized image are rounded independently
    across, down = size[1] / mask.shape[1], size[0] / mask.shape[0]
    box = [round(columns[0] * across), round(rows[0] * down)]
    box += [round((columns[-1] + 1) * across), round((rows[-1] + 1) * down)]
    image_index: Literal[0, 1] | None = None if side is None else 1 if side else 0
    return Region((box[0], box[1], box[2], box[3]), min(confidence, 1.0), torch.from_numpy(full), image_index)


def inside(region: Region) -> np.ndarray:
    """Return the mask of a region, bool ``(H, W)``."""
    assert region.mask is not None  # requested with masks=True
    return region.mask.numpy()


def covered_fraction(region: Region, mask: np.ndarray) -> float:
    """Compute the fraction of a region that is covered by a mask ``(H, W)``."""
    return float((mask & inside(region)).sum() / max(inside(region).sum(), 1))


def is_part(region: Region, other: Region) -> bool:
    """Whether a region is inside another one of the same image that is at least twice as large."""
    if region.image_index != other.image_index and None not in (region.image_index, other.image_index):
        return False
    (a, b, c, d), (e, f, g, h) = region.box, other.box
    shared = max(0, min(c, g) - max(a, e)) * max(0, min(d, h) - max(b, f))
    return _area(region) < 0.5 * _area(other) and shared > 0.8 * _area(region)


def _area(region: Region) -> int:
    return (region.box[2] - region.box[0]) * (region.box[3] - region.box[1])
