"""A segmenter without weights for things on a plain ground, under another light or with the camera moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from lightning_idc.images.resize import resize
from lightning_idc.synthesis.models.base import Region, Segmenter
from lightning_idc.synthesis.models.contours import DifferenceContours
from lightning_idc.synthesis.models.details import alone, inside, is_part, region_of, share, widened, widened_contours
from lightning_idc.synthesis.models.ground import COLORED, Picture, hues_of, is_sharp, picture_of

_FAR, _CLOSE = 24, 3
"""How far a thing is looked for, and how exactly; pixels of the side that pictures are compared in."""
_FREE, _STILL = 14, 6
"""How far from where it should be a thing may be where the camera moved, and where it did not."""
_BESIDE = 1 / 32
"""Share of the picture's side within which a contour is the shadow of what came or is gone."""
_SHARED = 0.3
"""Share of a contour that things of a hue may take."""
_BESIDE_SHARE = 0.1
"""Share of a contour that may lie beside what came or is gone."""
_POINTS = 120
_MOST = 0.6
"""Distance of two pixels that counts as wholly different."""
_LEAST_PART = 0.1
"""Share of a thing that must have another hue for that part alone to be a region, and that must be as it was."""
_KNOWN = 0.12
"""Distance up to which a thing counts as found, so that its way tells how the camera moved."""


@dataclass(slots=True)
class Thing:
    """A part of one hue that stands on the ground.

    Args:
        mask: where it is.
        gray: whether it has the ground's own colour.
        way: down and across to where the other picture fits best.
        apart: distance there.
    """

    mask: np.ndarray
    gray: bool
    way: np.ndarray
    apart: float = 0.0

    @property
    def centre(self) -> np.ndarray:
        return np.argwhere(self.mask).mean(0)


class ChangedThings(Segmenter):
    """Things on a plain ground that the other picture does not show where they should be, and else contours.

    What the ground does not reach smoothly from the border are things, cut by hue. Each is looked for in the other
    picture; how those went that are found there tells how the camera moved. A thing that does not go with them, or is
    not found, is a region of its picture. Neither light nor camera changes colours, and a difference of the mean
    brightness does not count. Where the camera stands still, what has no hue is found by sharp detail that the other
    picture has not, and by contours. Pictures that lie on top of each other, and those without a plain ground, are left
    to ``otherwise``.

    Args:
        otherwise: segmenter of all other pairs.
        differs: distance from which on a thing has changed, in logarithms of colours.
        blurs: what is added to that where the camera moved.
        min_ground: share of both pictures that is plain ground.
        min_area: share of the picture that a thing must have.
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
        found = []
        for first, second in zip(before, after, strict=True):
            own = None if _aligned(first, second) else self._changed(first, second)
            found.append(self.otherwise.regions([first], [second], masks)[0] if own is None else own)
        return found

    def _changed(self, before: Tensor, after: Tensor) -> list[Region] | None:
        """Regions of a pair; None where the ground is not plain."""
        pair = [picture_of(image) for image in (before, after)]
        if min(picture.ground.mean() for picture in pair) < self.min_ground:
            return None
        found: list[Region] = []
        colored = np.zeros(before.shape[1:], bool)
        still = True
        for side, (own, other) in enumerate(zip(pair, reversed(pair), strict=True)):
            things = self._things(own)
            for thing in things:
                thing.way, thing.apart = _nearest(thing, own, other)
            way_of, moved = _camera([thing for thing in things if not thing.gray])
            still = still and not moved
            for thing in things:
                if not thing.gray:
                    colored |= inside(region_of(thing.mask, before.shape[1:], 0.0))
                expected = np.round(way_of(thing.centre)).astype(int)
                apart = _distances(thing, own, other, _around(expected, _FREE if moved else _STILL, 1)).min()
                if apart > self.differs + (self.blurs if moved else 0.0) and (moved or not thing.gray):
                    part = _changed_part(thing, own, other, expected, self.differs)
                    found.append(region_of(part, before.shape[1:], float(apart) / _MOST, side))
        if still:
            found += self._gray(before, after, colored)
        found = [region for region in found if not any(is_part(region, other) for other in found)]
        return sorted(found, key=lambda region: -region.confidence)

    def _gray(self, before: Tensor, after: Tensor, colored: np.ndarray) -> list[Region]:
        """Regions beside things that have a hue: by outlines and contours, which lie on top of each other.

        What is gray cannot be told from a shadow by its hue.
        """
        new = [region for region in alone(before, after) if share(region, colored) < _SHARED]
        reach = round(_BESIDE * max(colored.shape)) * 2 + 1
        beside = widened(np.any([np.zeros_like(colored), *map(inside, new)], 0).astype(np.uint8), reach) > 0
        contours = self.otherwise.regions([before], [after], True)[0]
        free = [r for r in contours if share(r, colored) < _SHARED and share(r, beside) < _BESIDE_SHARE]
        return new + widened_contours(free, before, after)

    def _things(self, picture: Picture) -> list[Thing]:
        import cv2

        hues = hues_of(picture)
        found = []
        for hue in np.unique(hues[hues > 0]):
            mask = cv2.morphologyEx((hues == hue).astype(np.uint8), cv2.MORPH_OPEN, np.ones((3, 3), np.uint8))
            _, parts, stats, _ = cv2.connectedComponentsWithStats(mask, connectivity=4)
            for number, (*_, area) in enumerate(stats):
                own = parts == number
                if number and area >= self.min_area * mask.size and (hue > 1 or is_sharp(own, picture)):
                    found.append(Thing(own, hue == 1, np.zeros(2, int)))
        return found


def _nearest(thing: Thing, own: Picture, other: Picture) -> tuple[np.ndarray, float]:
    """Where the other picture fits a thing best, down and across, and how far it is from it there."""
    ways = _around(np.zeros(2, int), _FAR, 4)
    ways = _around(ways[_distances(thing, own, other, ways).argmin()], _CLOSE, 1)
    apart = _distances(thing, own, other, ways)
    return ways[apart.argmin()], float(apart.min())


def _around(middle: np.ndarray, reach: int, step: int) -> np.ndarray:
    steps = np.arange(-reach, reach + 1, step)
    return np.stack(np.meshgrid(steps, steps, indexing="ij"), -1).reshape(-1, 2) + middle


def _distances(thing: Thing, own: Picture, other: Picture, ways: np.ndarray) -> np.ndarray:
    """Mean distance of a thing's pixels from those that lie some way from them in the other picture, for each way."""
    points = np.argwhere(thing.mask)
    points = points[np.linspace(0, len(points) - 1, min(_POINTS, len(points))).astype(int)]
    places = points[None] + ways[:, None]
    height, width = other.ground.shape
    there = other.values[places[..., 0].clip(0, height - 1), places[..., 1].clip(0, width - 1)]
    gap = own.values[points[:, 0], points[:, 1]][None] - there
    gap[..., 2] -= np.median(gap[..., 2], 1, keepdims=True)  # another light is brighter or darker
    return np.minimum(np.sqrt((gap**2).sum(2)), _MOST).mean(1)


def _changed_part(thing: Thing, own: Picture, other: Picture, way: np.ndarray, same: float) -> np.ndarray:
    """The part of a thing that has another hue in the other picture, where the rest of it is as it was; else all of it.

    Two things of one hue that touch are one thing here.
    """
    import cv2

    points = np.argwhere(thing.mask)
    height, width = other.ground.shape
    places = (points + way).clip(0, [height - 1, width - 1])
    gap = own.values[points[:, 0], points[:, 1]] - other.values[places[:, 0], places[:, 1]]
    hued = np.zeros(thing.mask.shape, np.uint8)
    hued[points[:, 0], points[:, 1]] = np.hypot(gap[:, 0], gap[:, 1]) > COLORED
    opened = cv2.morphologyEx(hued, cv2.MORPH_OPEN, np.ones((5, 5), np.uint8))
    _, parts, stats, _ = cv2.connectedComponentsWithStats(opened)
    largest = int(stats[1:, -1].argmax()) + 1 if len(stats) > 1 else 0
    found = parts == largest
    stays = ~found[points[:, 0], points[:, 1]]
    rest, there = gap[stays], places[stays]
    if not largest or not _LEAST_PART < 1 - len(rest) / len(gap) < 1 - _LEAST_PART:
        return thing.mask
    if other.ground[there[:, 0], there[:, 1]].mean() > 0.5:
        return thing.mask  # where it is gray it has the colour of the ground
    rest[:, 2] -= np.median(rest[:, 2])
    apart = np.minimum(np.sqrt((rest**2).sum(1)), _MOST).mean()
    return found if apart < same else thing.mask


def _camera(things: Sequence[Thing]) -> tuple[Any, bool]:
    """How things go from one picture to the other by their place, and whether the camera moved at all."""
    known = [thing for thing in things if thing.apart < _KNOWN]
    if not known:
        return (lambda place: np.zeros(2)), False
    places = np.array([[1, *(thing.centre / 128)] for thing in known])
    ways = np.array([thing.way for thing in known], float)
    fit = np.zeros((3, 2))
    fit[0] = np.median(ways, 0)
    moved = bool(np.abs(np.median(np.abs(ways), 0)).max() > 1)
    for _ in range(10 if len(known) > 3 else 0):
        left = np.linalg.norm(ways - places @ fit, axis=1)
        weighted = places * (1 / (1 + (left / 3) ** 2) ** 2)[:, None]  # a thing that moved by itself counts little
        fit = np.linalg.solve(weighted.T @ places + np.diag([1e-6, 0.3, 0.3]), weighted.T @ ways)
    return (lambda place: np.array([1, *(place / 128)]) @ fit), moved


def _aligned(before: Tensor, after: Tensor) -> bool:
    """Whether two pictures lie on top of each other in one light: most of them is the same but for noise."""
    size = max(1, before.shape[1] // 4), max(1, before.shape[2] // 4)
    return bool((resize(before, size).int() - resize(after, size).int()).abs().amax(0).float().median() <= 1)
