"""Sharp detail of two pictures that lie on top of each other, by which things without a hue are found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from lightning_idc.synthesis.models.base import Region
from lightning_idc.synthesis.models.ground import resized

_SIDE = 128
"""Longer side in which pictures are compared; all lengths below are pixels of it."""
_DETAIL, _MORE_DETAIL = 0.02, 2.5
"""How much sharp detail there must be, and how much more than in the other picture."""
_LEAST = 1 / 400
"""Share of the picture that it must fill."""
_APART, _WIDER = 0.045, 4
"""Distance of slopes from which on something changed, and how much wider than its contour that may be."""


def alone(before: Tensor, after: Tensor) -> list[Region]:
    """Where one picture has sharp detail and the other one has none: what came or is gone; shadows are soft.

    Args:
        before: uint8 ``(3, H, W)``.
        after: the same.
    """
    details = [detail_of(image) for image in (before, after)]
    found = []
    for side, (own, other) in enumerate(zip(details, reversed(details), strict=True)):
        for mask in _filled((own > _DETAIL) & (own > _MORE_DETAIL * widened(other, 3))):
            if mask.sum() >= _LEAST * mask.size:
                more = 1 - min(float(other[mask].sum() / own[mask].sum()), 1.0)
                found.append(region_of(mask, before.shape[1:], more, side))
    return found


def widened_contours(regions: Sequence[Region], before: Tensor, after: Tensor) -> list[Region]:
    """Contours, each widened to where the slopes of the brightness differ; contours end where the brightness is alike.

    Args:
        regions: with masks.
        before: uint8 ``(3, H, W)``.
        after: the same.
    """
    wholes = [region_of(mask, before.shape[1:], 0.0) for mask in _filled(_slopes_apart(before, after) > _APART)]
    found: list[Region] = []
    for region in regions:
        fits = [w for w in wholes if share(region, inside(w)) > 0.5 and _area(w) < _WIDER * _area(region)]
        best = max(fits, key=lambda whole: share(region, inside(whole)), default=None)
        if best is None:
            found.append(region)
        elif all(best.box != other.box for other in found):
            found.append(Region(best.box, region.confidence, best.mask, region.picture))
    return found


def detail_of(image: Tensor) -> np.ndarray:
    """Strength of sharp detail in the logarithm of the brightness, ``(H, W)``; soft shadows have none.

    Args:
        image: uint8 ``(3, H, W)``.
    """
    import cv2

    light = _light(image)
    return np.sqrt(cv2.GaussianBlur((light - cv2.GaussianBlur(light, (0, 0), 1.0)) ** 2, (0, 0), 0.8))


def _slopes_apart(before: Tensor, after: Tensor) -> np.ndarray:
    """Distance of the slopes of two pictures' logarithmic brightness, ``(H, W)``."""
    import cv2

    slopes = []
    for image in (before, after):
        light = cv2.GaussianBlur(_light(image), (0, 0), 0.7)
        slopes.append([cv2.Sobel(light, cv2.CV_32F, dx, 1 - dx, scale=1 / 8) for dx in (1, 0)])
    apart = np.hypot(slopes[0][0] - slopes[1][0], slopes[0][1] - slopes[1][1])
    return np.asarray(cv2.GaussianBlur(apart, (0, 0), 1.0))


def _light(image: Tensor) -> np.ndarray:
    return np.asarray(np.log(resized(image.float().mean(0).numpy(), _SIDE) + 8))


def widened(values: np.ndarray, reach: int) -> np.ndarray:
    """The largest value within ``reach`` pixels in all, ``(H, W)``."""
    import cv2

    return np.asarray(cv2.dilate(values, np.ones((reach, reach), np.uint8)))


def _filled(mask: np.ndarray) -> list[np.ndarray]:
    """Parts of a mask of outlines, each filled and without the pixel that detail reaches beyond an outline."""
    import cv2

    reach = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (7, 7))
    closed = cv2.morphologyEx(mask.astype(np.uint8), cv2.MORPH_CLOSE, reach)
    outlines, _ = cv2.findContours(closed, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    whole = cv2.drawContours(np.zeros_like(closed), outlines, -1, 1, -1)
    whole = cv2.erode(cv2.morphologyEx(whole, cv2.MORPH_OPEN, np.ones((3, 3), np.uint8)), np.ones((3, 3), np.uint8))
    count, parts = cv2.connectedComponents(whole)
    return [parts == number for number in range(1, count)]


def region_of(mask: np.ndarray, size: Sequence[int], confidence: float, side: int | None = None) -> Region:
    """A mask of a picture that was resized as a region of the picture itself.

    Args:
        mask: bool ``(h, w)``.
        size: height and width of the picture.
        confidence: 0 to 1.
        side: picture of the pair; None for both.
    """
    import cv2

    full = cv2.resize(mask.astype(np.uint8), (size[1], size[0]), interpolation=cv2.INTER_AREA) > 0
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    # the sides of a reduced picture are rounded, each for itself
    across, down = size[1] / mask.shape[1], size[0] / mask.shape[0]
    box = [round(columns[0] * across), round(rows[0] * down)]
    box += [round((columns[-1] + 1) * across), round((rows[-1] + 1) * down)]
    picture: Literal[0, 1] | None = None if side is None else 1 if side else 0
    return Region((box[0], box[1], box[2], box[3]), min(confidence, 1.0), torch.from_numpy(full), picture)


def inside(region: Region) -> np.ndarray:
    """Mask of a region, bool ``(H, W)``."""
    assert region.mask is not None  # it was asked for
    return region.mask.numpy()


def share(region: Region, taken: np.ndarray) -> float:
    """Share of a region that is taken, by a mask ``(H, W)``."""
    return float((taken & inside(region)).sum() / max(inside(region).sum(), 1))


def is_part(region: Region, other: Region) -> bool:
    """Whether a region lies in one of the same picture that is at least twice as large."""
    if region.picture != other.picture and None not in (region.picture, other.picture):
        return False
    (a, b, c, d), (e, f, g, h) = region.box, other.box
    shared = max(0, min(c, g) - max(a, e)) * max(0, min(d, h) - max(b, f))
    return _area(region) < 0.5 * _area(other) and shared > 0.8 * _area(region)


def _area(region: Region) -> int:
    return (region.box[2] - region.box[0]) * (region.box[3] - region.box[1])
