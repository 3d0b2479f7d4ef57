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

    Objects are the areas that the ground does not reach smoothly from the border, split by hue. Each object is searched
    for in the other image, and the displacements of matched objects yield the camera motion. An object that is not
    matched, or does not follow the camera motion, is a region of its image. Light and camera do not change hues, and
    differences in mean brightness are ignored. Without camera motion, gray objects are found by sharp detail in only
    one image and by contours. Pairs that are aligned or have no plain ground are passed to ``otherwise``.

    Args:
        otherwise: segmenter for all other pairs.
        differs: minimum distance of a changed object, in log colour.
        blurs: increase of this threshold if the camera moved.
        min_ground: minimum fraction of plain ground in both images.
        min_area: minimum area of an object as a fraction of the image.
    """

    def __init__(
        self,
        otherwise: Segmenter | None = None,
        differs: float = 0.085,
        blurs: float = 0.04,
        min_ground: float = 0.4,
        min_area: float = 1 / 2000,
    ) -> None:
        super().__init__()
        self.otherwise = otherwise or DifferenceContours()
        self.differs, self.blurs, self.min_ground, self.min_area = differs, blurs, min_ground, min_area

    def settings(self) -> dict[str, Any]:
        return {
            "model": "ChangedThings",
            "otherwise": self.otherwise.settings(),
            "differs": self.differs,
            "blurs": self.blurs,
            "min_ground": self.min_ground,
            "min_area": self.min_area,
        }

    def regions(self, before: Sequence[Tensor], after: Sequence[Tensor], masks: bool = False) -> list[list[Region]]:
        regions = []
        for first, second in zip(before, after, strict=True):
            source = None if _aligned(first, second) else self._changed(first, second)
            regions.append(self.otherwise.regions([first], [second], masks)[0] if source is None else source)
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
            objects = self._things(source)
            for item in objects:
                item.displacement, item.distance = _best_match(item, source, other)
            displacement_at, moved = _fit_camera([item for item in objects if not item.gray])
            still = still and not moved
            for item in objects:
                if not item.gray:
                    colored |= inside(region_of(item.mask, before.shape[1:], 0.0))
                expected = np.round(displacement_at(item.centre)).astype(int)
                distance = _distances(
                    item, source, other, _grid_around(expected, _MAX_OFFSET_MOVED if moved else _MAX_OFFSET_STILL, 1)
                ).min()
                if distance > self.differs + (self.blurs if moved else 0.0) and (moved or not item.gray):
                    part = _changed_part(item, source, other, expected, self.differs)
                    regions.append(region_of(part, before.shape[1:], float(distance) / _MAX_DISTANCE, side))
        if still:
            regions += self._gray_regions(before, after, colored)
        regions = [region for region in regions if not any(is_part(region, other) for other in regions)]
        return sorted(regions, key=lambda region: -region.confidence)

    def _gray_regions(self, before: Tensor, after: Tensor, colored: np.ndarray) -> list[Region]:
        """Find regions outside of coloured objects, by sharp detail and contours of the aligned images.

        Gray objects cannot be distinguished from shadows by hue.
        """
        new = [
            region
            for region in one_sided_details(before, after)
            if covered_fraction(region, colored) < _MAX_COVERED_FRACTION
        ]
        reach = round(_SHADOW_REACH * max(colored.shape)) * 2 + 1
        near_changed = dilate(np.any([np.zeros_like(colored), *map(inside, new)], 0).astype(np.uint8), reach) > 0
        contours = self.otherwise.regions([before], [after], True)[0]
        free = [
            r
            for r in contours
            if covered_fraction(r, colored) < _MAX_COVERED_FRACTION
            and covered_fraction(r, near_changed) < _MAX_NEAR_FRACTION
        ]
        return new + extend_contours(free, before, after)

    def _things(self, separated: SeparatedImage) -> list[GroundObject]:
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


def _best_match(item: GroundObject, source: SeparatedImage, other: SeparatedImage) -> tuple[np.ndarray, float]:
    """Find the displacement (down, right) of the best match of an object in the other image, and its distance."""
    displacements = _grid_around(np.zeros(2, int), _SEARCH_RADIUS, 4)
    displacements = _grid_around(
        displacements[_distances(item, source, other, displacements).argmin()], _REFINEMENT_RADIUS, 1
    )
    distance = _distances(item, source, other, displacements)
    return displacements[distance.argmin()], float(distance.min())


def _grid_around(middle: np.ndarray, reach: int, step: int) -> np.ndarray:
    steps = np.arange(-reach, reach + 1, step)
    return np.stack(np.meshgrid(steps, steps, indexing="ij"), -1).reshape(-1, 2) + middle


def _distances(
    item: GroundObject, source: SeparatedImage, other: SeparatedImage, displacements: np.ndarray
) -> np.ndarray:
    """Compute, per displacement, the mean distance between an object and the displaced pixels of the other image."""
    points = np.argwhere(item.mask)
    points = points[np.linspace(0, len(points) - 1, min(_POINTS, len(points))).astype(int)]
    positions = points[None] + displacements[:, None]
    height, width = other.ground.shape
    matched_values = other.values[positions[..., 0].clip(0, height - 1), positions[..., 1].clip(0, width - 1)]
    difference = source.values[points[:, 0], points[:, 1]][None] - matched_values
    difference[..., 2] -= np.median(difference[..., 2], 1, keepdims=True)  # compensates for brightness
    return np.minimum(np.sqrt((difference**2).sum(2)), _MAX_DISTANCE).mean(1)


def _changed_part(
    item: GroundObject, source: SeparatedImage, other: SeparatedImage, displacement: np.ndarray, max_distance: float
) -> np.ndarray:
    """Return the part of an object that changes its hue, if the rest is unchanged; otherwise the full object.

    Touching objects of one hue are segmented as one object.
    """
    import cv2

    points = np.argwhere(item.mask)
    height, width = other.ground.shape
    positions = (points + displacement).clip(0, [height - 1, width - 1])
    difference = source.values[points[:, 0], points[:, 1]] - other.values[positions[:, 0], positions[:, 1]]
    hued = np.zeros(item.mask.shape, np.uint8)
    hued[points[:, 0], points[:, 1]] = np.hypot(difference[:, 0], difference[:, 1]) > COLORED
    opened = cv2.morphologyEx(hued, cv2.MORPH_OPEN, np.ones((5, 5), np.uint8))
    _, parts, stats, _ = cv2.connectedComponentsWithStats(opened)
    largest = int(stats[1:, -1].argmax()) + 1 if len(stats) > 1 else 0
    part = parts == largest
    stays = ~part[points[:, 0], points[:, 1]]
    rest, rest_positions = difference[stays], positions[stays]
    if not largest or not _MIN_PART < 1 - len(rest) / len(difference) < 1 - _MIN_PART:
        return item.mask
    if other.ground[rest_positions[:, 0], rest_positions[:, 1]].mean() > 0.5:
        return item.mask  # a gray rest cannot be distinguished from the ground
    rest[:, 2] -= np.median(rest[:, 2])
    distance = np.minimum(np.sqrt((rest**2).sum(1)), _MAX_DISTANCE).mean()
    return part if distance < max_distance else item.mask


def _fit_camera(objects: Sequence[GroundObject]) -> tuple[Any, bool]:
    """Fit the displacement of objects as a function of position, and detect whether the camera moved."""
    matched = [item for item in objects if item.distance < _MATCHED_DISTANCE]
    if not matched:
        return (lambda position: np.zeros(2)), False
    positions = np.array([[1, *(item.centre / 128)] for item in matched])
    displacements = np.array([item.displacement for item in matched], float)
    fit = np.zeros((3, 2))
    fit[0] = np.median(displacements, 0)
    moved = bool(np.abs(np.median(np.abs(displacements), 0)).max() > 1)
    for _ in range(10 if len(matched) > 3 else 0):
        residuals = np.linalg.norm(displacements - positions @ fit, axis=1)
        # downweights objects that moved on their own
        weighted = positions * (1 / (1 + (residuals / 3) ** 2) ** 2)[:, None]
        fit = np.linalg.solve(weighted.T @ positions + np.diag([1e-6, 0.3, 0.3]), weighted.T @ displacements)
    return (lambda position: np.array([1, *(position / 128)]) @ fit), moved


def _aligned(before: Tensor, after: Tensor) -> bool:
    """Whether two images are aligned under the same light: equal up to noise in most pixels."""
    size = max(1, before.shape[1] // 4), max(1, before.shape[2] // 4)
    return bool((resize(before, size).int() - resize(after, size).int()).abs().amax(0).float().median() <= 1)
