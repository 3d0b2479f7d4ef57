"""Segmenter without weights for changed objects on a plain ground, robust to changes of light and camera."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from lightning_idc.images.resize import resize
from lightning_idc.synthesis.models.base import Region, Segmenter
from lightning_idc.synthesis.models.contours import DifferenceContours
from lightning_idc.synthesis.models.details import (
    covered_fraction,
    dilate,
    extend_contours,
    inside,
    is_part,
    one_sided_details,
    region_of,
)
from lightning_idc.synthesis.models.ground import COLORED, SeparatedImage, hues_of, is_sharp, separate_ground

_SEARCH_RADIUS, _REFINEMENT_RADIUS = 24, 3
"""Search radius of an object, and radius of its refinement; pixels of the resized image."""
_MAX_OFFSET_MOVED, _MAX_OFFSET_STILL = 14, 6
"""Largest distance of an object from its expected position, with and without camera motion; pixels."""
_SHADOW_REACH = 1 / 32
"""Distance, as a fraction of the longer side, at which a contour may be the shadow of a changed object."""
_MAX_COVERED_FRACTION = 0.3
"""Largest fraction of a contour that coloured objects may cover."""
_MAX_NEAR_FRACTION = 0.1
"""Largest fraction of a contour that may be near a changed object."""
_POINTS = 120
_MAX_DISTANCE = 0.6
"""Distance at which two pixels count as completely different."""
_MIN_PART = 0.1
"""Minimum fractions of an object with changed and with unchanged hue for the changed part to be a region."""
_MATCHED_DISTANCE = 0.12
"""Largest distance at which an object counts as matched, so that its displacement shows the camera motion."""


@dataclass(slots=True)
class GroundObject:
    """Object of one hue on the ground.

    Args:
        mask: mask of the object, bool ``(H, W)``.
        gray: whether it has the colour of the ground.
        displacement: displacement (down, right) to the best match in the other image.
        distance: distance at the best match.
    """

    mask: np.ndarray
    gray: bool
    displacement: np.ndarray
    distance: float = 0.0

    @property
    def centre(self) -> np.ndarray:
        return np.argwhere(self.mask).mean(0)


class ChangedThings(Segmenter):
    """Finds objects on a plain ground that are not at their expected position in the other image.

    Objects are areas with edges to the ground around them, split by hue. Each object is searched
    for in the other image, and the displacements of matched objects yield the camera motion. An object that is not
    matched, or does not follow the camera motion, is a region of its image. Light and camera do not change hues, and
    differences in mean brightness are ignored. Without camera motion, gray objects are found by sharp detail in only
    one image and by contours. Pairs that are aligned or have no plain ground are passed to ``fallback``.

    Args:
        fallback: segmenter for all other pairs.
        min_distance: minimum distance of a changed object, in log colour.
        motion_margin: increase of this threshold if the camera moved.
        min_ground: minimum fraction of plain ground in both images.
        min_area: minimum area of an object as a fraction of the image.
    """

    def __init__(
        self,
        fallback: Segmenter | None = None,
        min_distance: float = 0.085,
        motion_margin: float = 0.04,
        min_ground: float = 0.4,
        min_area: float = 1 / 2000,
    ) -> None:
        super().__init__()
        self.fallback = fallback or DifferenceContours()
        self.min_distance, self.motion_margin, self.min_ground, self.min_area = (
            min_distance,
            motion_margin,
            min_ground,
            min_area,
        )

    def settings(self) -> dict[str, Any]:
        return {
            "model": "ChangedThings",
            "fallback": self.fallback.settings(),
            "min_distance": self.min_distance,
            "motion_margin": self.motion_margin,
            "min_ground": self.min_ground,
            "min_area": self.min_area,
        }

    def regions(self, before: Sequence[Tensor], after: Sequence[Tensor], masks: bool = False) -> list[list[Region]]:
        regions = []
        for first, second in zip(before, after, strict=True):
            source = None if _aligned(first, second) else self._changed(first, second)
            regions.append(self.fallback.regions([first], [second], masks)[0] if source is None else source)
        return regions

    def _changed(self, before: Tensor, after: Tensor) -> list[Region] | None:
        """Find the regions of a pair; None if the ground is not plain."""
        pair = [separate_ground(image) for image in (before, after)]
        if min(separated.ground.mean() for separated in pair) < self.min_ground:
            return None
        regions: list[Region] = []
        colored = np.zeros(before.shape[1:], bool)
        still = True
        for side, (source, other) in enumerate(zip(pair, reversed(pair), strict=True)):
            objects = self._objects(source)
            for obj in objects:
                obj.displacement, obj.distance = _best_match(obj, source, other)
            displacement_at, moved = _fit_camera([obj for obj in objects if not obj.gray])
            still = still and not moved
            for obj in objects:
                if not obj.gray:
                    colored |= inside(region_of(obj.mask, before.shape[1:], 0.0))
                expected = np.round(displacement_at(obj.centre)).astype(int)
                distance = _distances(
                    obj, source, other, _grid_around(expected, _MAX_OFFSET_MOVED if moved else _MAX_OFFSET_STILL, 1)
                ).min()
                if distance > self.min_distance + (self.motion_margin if moved else 0.0) and (moved or not obj.gray):
                    part = _changed_part(obj, source, other, expected, self.min_distance)
                    regions.append(region_of(part, before.shape[1:], float(distance) / _MAX_DISTANCE, side))
        if still:
            regions += self._gray_regions(before, after, colored)
        regions = [region for region in regions if not any(is_part(region, other) for other in regions)]
        return sorted(regions, key=lambda region: -region.confidence)

    def _gray_regions(self, before: Tensor, after: Tensor, colored: np.ndarray) -> list[Region]:
        """Find regions outside of coloured objects, by sharp detail and contours of the aligned images.

        Gray objects cannot be distinguished from shadows by hue.
        """
        detail_regions = [
            region
            for region in one_sided_details(before, after)
            if covered_fraction(region, colored) < _MAX_COVERED_FRACTION
        ]
        radius = round(_SHADOW_REACH * max(colored.shape)) * 2 + 1
        near_changed = (
            dilate(np.any([np.zeros_like(colored), *map(inside, detail_regions)], 0).astype(np.uint8), radius) > 0
        )
        contours = self.fallback.regions([before], [after], True)[0]
        unexplained = [
            r
            for r in contours
            if covered_fraction(r, colored) < _MAX_COVERED_FRACTION
            and covered_fraction(r, near_changed) < _MAX_NEAR_FRACTION
        ]
        return detail_regions + extend_contours(unexplained, before, after)

    def _objects(self, separated: SeparatedImage) -> list[GroundObject]:
        import cv2

        hues = hues_of(separated)
        regions = []
        for hue in np.unique(hues[hues > 0]):
            mask = cv2.morphologyEx((hues == hue).astype(np.uint8), cv2.MORPH_OPEN, np.ones((3, 3), np.uint8))
            _, parts, stats, _ = cv2.connectedComponentsWithStats(mask, connectivity=4)
            for number, (*_, area) in enumerate(stats):
                source = parts == number
                if number and area >= self.min_area * mask.size and (hue > 1 or is_sharp(source, separated)):
                    regions.append(GroundObject(source, hue == 1, np.zeros(2, int)))
        return regions


def _best_match(obj: GroundObject, source: SeparatedImage, other: SeparatedImage) -> tuple[np.ndarray, float]:
    """Find the displacement (down, right) of the best match of an object in the other image, and its distance."""
    displacements = _grid_around(np.zeros(2, int), _SEARCH_RADIUS, 4)
    displacements = _grid_around(
        displacements[_distances(obj, source, other, displacements).argmin()], _REFINEMENT_RADIUS, 1
    )
    distance = _distances(obj, source, other, displacements)
    return displacements[distance.argmin()], float(distance.min())


def _grid_around(middle: np.ndarray, radius: int, step: int) -> np.ndarray:
    steps = np.arange(-radius, radius + 1, step)
    return np.stack(np.meshgrid(steps, steps, indexing="ij"), -1).reshape(-1, 2) + middle


def _distances(
    obj: GroundObject, source: SeparatedImage, other: SeparatedImage, displacements: np.ndarray
) -> np.ndarray:
    """Compute, per displacement, the mean distance between an object and the displaced pixels of the other image."""
    points = np.argwhere(obj.mask)
    points = points[np.linspace(0, len(points) - 1, min(_POINTS, len(points))).astype(int)]
    positions = points[None] + displacements[:, None]
    height, width = other.ground.shape
    matched_values = other.values[positions[..., 0].clip(0, height - 1), positions[..., 1].clip(0, width - 1)]
    difference = source.values[points[:, 0], points[:, 1]][None] - matched_values
    difference[..., 2] -= np.median(difference[..., 2], 1, keepdims=True)  # compensates for brightness
    return np.minimum(np.sqrt((difference**2).sum(2)), _MAX_DISTANCE).mean(1)


def _changed_part(
    obj: GroundObject, source: SeparatedImage, other: SeparatedImage, displacement: np.ndarray, max_distance: float
) -> np.ndarray:
    """Return the part of an object that changes its hue, if the rest is unchanged; otherwise the full object.

    Touching objects of one hue are segmented as one object.
    """
    import cv2

    points = np.argwhere(obj.mask)
    height, width = other.ground.shape
    positions = (points + displacement).clip(0, [height - 1, width - 1])
    difference = source.values[points[:, 0], points[:, 1]] - other.values[positions[:, 0], positions[:, 1]]
    has_new_hue = np.zeros(obj.mask.shape, np.uint8)
    has_new_hue[points[:, 0], points[:, 1]] = np.hypot(difference[:, 0], difference[:, 1]) > COLORED
    opened = cv2.morphologyEx(has_new_hue, cv2.MORPH_OPEN, np.ones((5, 5), np.uint8))
    _, parts, stats, _ = cv2.connectedComponentsWithStats(opened)
    largest = int(stats[1:, -1].argmax()) + 1 if len(stats) > 1 else 0
    part = parts == largest
    is_unchanged = ~part[points[:, 0], points[:, 1]]
    rest, rest_positions = difference[is_unchanged], positions[is_unchanged]
    if not largest or not _MIN_PART < 1 - len(rest) / len(difference) < 1 - _MIN_PART:
        return obj.mask
    if other.ground[rest_positions[:, 0], rest_positions[:, 1]].mean() > 0.5:
        return obj.mask  # a gray rest cannot be distinguished from the ground
    rest[:, 2] -= np.median(rest[:, 2])
    distance = np.minimum(np.sqrt((rest**2).sum(1)), _MAX_DISTANCE).mean()
    return part if distance < max_distance else obj.mask


def _fit_camera(objects: Sequence[GroundObject]) -> tuple[Any, bool]:
    """Fit the displacement of objects as a function of position, and detect whether the camera moved."""
    matched = [obj for obj in objects if obj.distance < _MATCHED_DISTANCE]
    if not matched:
        return (lambda position: np.zeros(2)), False
    positions = np.array([[1, *(obj.centre / 128)] for obj in matched])
    displacements = np.array([obj.displacement for obj in matched], float)
    fit = np.zeros((3, 2))
    fit[0] = np.median(displacements, 0)
    moved = bool(np.abs(np.median(np.abs(displacements), 0)).max() > 1)
    for _ in range(10 if len(matched) > 3 else 0):
        residuals = np.linalg.norm(displacements - positions @ fit, axis=1)
        # down-weight objects that moved independently of the camera
        weighted = positions * (1 / (1 + (residuals / 3) ** 2) ** 2)[:, None]
        fit = np.linalg.solve(weighted.T @ positions + np.diag([1e-6, 0.3, 0.3]), weighted.T @ displacements)
    return (lambda position: np.array([1, *(position / 128)]) @ fit), moved


def _aligned(before: Tensor, after: Tensor) -> bool:
    """Whether two images are aligned under the same light: equal up to noise in most pixels."""
    size = max(1, before.shape[1] // 4), max(1, before.shape[2] // 4)
    return bool((resize(before, size).int() - resize(after, size).int()).abs().amax(0).float().median() <= 1)
