"""A segmenter without weights for things on a plain ground, under another light or with the camera moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_idc.core.images import resize
from lightning_idc.synthesis.slots.base import Region, Segmenter
from lightning_idc.synthesis.slots.contours import DifferenceContours

_SIDE = 256
"""Longer side in which pictures are compared; all lengths below are pixels of it."""
_STEP, _HUE_STEP = 0.03, 0.06
"""Slope of the logarithms' brightness and colour at which a thing may begin."""
_GAP = 2
"""Half of the widest gap in an outline through which the ground does not get in."""
_COLORED = 0.25
"""Colour difference to the ground from which on a pixel has a hue."""
_HUES = 90
_FAR, _CLOSE = 24, 3
"""How far a thing is looked for, and how exactly."""
_FREE, _STILL = 14, 6
"""How far from where it should be a thing may be where the camera moved, and where it did not."""
_SHARED = 0.3
"""Share of a contour that things of a hue may take."""
_POINTS = 120
_MOST = 0.6
"""Distance of two pixels that counts as wholly different."""
_KNOWN = 0.12
"""Distance up to which a thing counts as found, so that its way tells how the camera moved."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture as things are looked for in it.

    Args:
        values: two colour differences to the ground and half of the brightness, logarithms, ``(H, W, 3)``.
        ground: where nothing stands, ``(H, W)``.
        steps: slope of the brightness, ``(H, W)``.
    """

    values: np.ndarray
    ground: np.ndarray
    steps: np.ndarray


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
    brightness does not count. Pictures that lie on top of each other, and those without a plain ground, are left to
    ``otherwise``.

    Args:
        otherwise: segmenter of all other pairs.
        differs: distance from which on a thing has changed, in logarithms of colours.
        blurs: what is added to that where the camera moved.
        least_ground: share of both pictures that is plain ground.
        least_area: share of the picture that a thing must have.
    """

    def __init__(
        self,
        otherwise: Segmenter | None = None,
        differs: float = 0.085,
        blurs: float = 0.04,
        least_ground: float = 0.4,
        least_area: float = 1 / 2000,
    ) -> None:
        super().__init__()
        self.otherwise = otherwise or DifferenceContours()
        self.differs, self.blurs, self.least_ground, self.least_area = differs, blurs, least_ground, least_area

    def settings(self) -> dict[str, Any]:
        return {
            "model": "ChangedThings",
            "otherwise": self.otherwise.settings(),
            "differs": self.differs,
            "blurs": self.blurs,
            "least_ground": self.least_ground,
            "least_area": self.least_area,
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
        if min(picture.ground.mean() for picture in pair) < self.least_ground:
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
                region = _region(thing.mask, 0.0, side, before.shape[1:])
                colored |= np.zeros_like(colored) if thing.gray else _inside(region)
                expected = np.round(way_of(thing.centre)).astype(int)
                apart = _distances(thing, own, other, _around(expected, _FREE if moved else _STILL, 1)).min()
                if apart > self.differs + (self.blurs if moved else 0.0) and (moved or not thing.gray):
                    region.confidence = min(float(apart) / _MOST, 1.0)
                    found.append(region)
        if still:  # what is gray cannot be told from a shadow by its hue, but contours lie on top of each other
            others = self.otherwise.regions([before], [after], True)[0]
            found += [r for r in others if (colored & _inside(r)).sum() < _SHARED * _inside(r).sum()]
        return sorted(found, key=lambda region: -region.confidence)

    def _things(self, picture: Picture) -> list[Thing]:
        import cv2

        hues = hues_of(picture)
        found = []
        for hue in np.unique(hues[hues > 0]):
            mask = cv2.morphologyEx((hues == hue).astype(np.uint8), cv2.MORPH_OPEN, np.ones((3, 3), np.uint8))
            _, parts, stats, _ = cv2.connectedComponentsWithStats(mask, connectivity=4)
            for number, (*_, area) in enumerate(stats):
                inside = parts == number
                if number and area >= self.least_area * mask.size and (hue > 1 or _sharp(inside, picture)):
                    found.append(Thing(inside, hue == 1, np.zeros(2, int)))
        return found


def picture_of(image: Tensor) -> Picture:
    """What things are looked for in.

    Args:
        image: uint8 ``(3, H, W)``.
    """
    import cv2

    height, width = image.shape[1:]
    scale = _SIDE / max(height, width)
    size = (round(width * scale), round(height * scale))
    how = cv2.INTER_LINEAR if scale > 1 else cv2.INTER_AREA
    values = np.log(cv2.resize(image.permute(1, 2, 0).numpy().astype(np.float32), size, interpolation=how) + 16)
    red, green, blue = values[..., 0], values[..., 1], values[..., 2]
    light, colors = values.mean(2), np.stack([red - green, blue - (red + green) / 2], 2)
    steps = _slope(light)
    edges = (steps > _STEP) | (_slope(colors[..., 0]) > _HUE_STEP) | (_slope(colors[..., 1]) > _HUE_STEP)
    free = (~edges).astype(np.uint8)
    reach = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * _GAP + 1,) * 2)
    _, parts = cv2.connectedComponents(cv2.erode(free, reach), connectivity=4)
    border = np.concatenate([parts[0], parts[-1], parts[:, 0], parts[:, -1]])
    reached = cv2.dilate(np.isin(parts, border[border > 0]).astype(np.uint8), reach)
    ground = np.logical_and(reached, free).astype(np.uint8)
    things = cv2.morphologyEx(1 - ground, cv2.MORPH_OPEN, np.ones((5, 5), np.uint8))
    outlines, _ = cv2.findContours(things, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    ground = cv2.drawContours(np.zeros_like(things), outlines, -1, 1, -1) == 0
    plain = np.median(colors[ground], 0) if ground.any() else np.zeros(2)
    return Picture(np.dstack([colors - plain, light / 2]).astype(np.float32), ground, steps)


def _slope(values: np.ndarray) -> np.ndarray:
    import cv2

    across, down = cv2.Sobel(values, cv2.CV_32F, 1, 0, scale=1 / 8), cv2.Sobel(values, cv2.CV_32F, 0, 1, scale=1 / 8)
    return np.hypot(across, down)


def hues_of(picture: Picture) -> np.ndarray:
    """Number of the hue of each pixel, 0 on the ground, 1 for gray; the hues are the peaks of the picture's own."""
    import cv2

    colors, things = picture.values[..., :2], ~picture.ground
    strength = np.hypot(colors[..., 0], colors[..., 1])
    colored = things & (strength > _COLORED)
    found = things.astype(np.int32)
    if colored.any():
        angle = np.arctan2(colors[..., 1], colors[..., 0])[colored]
        place = ((angle / (2 * np.pi) + 0.5) * _HUES).astype(int) % _HUES
        counts = np.bincount(place, strength[colored], _HUES)
        bell = np.exp(-0.5 * (np.arange(-6, 7) / 2) ** 2)
        smooth = np.convolve(np.r_[counts[-6:], counts, counts[:6]], bell, "valid")
        near = np.arange(_HUES)[:, None] + np.array([-1, 0, 1])
        peak = near[np.arange(_HUES), smooth[near % _HUES].argmax(1)] % _HUES
        for _ in range(_HUES.bit_length()):
            peak = peak[peak]
        found[colored] = np.unique(peak, return_inverse=True)[1][place] + 2
    kinds = np.unique(found[things])
    if not len(kinds):
        return found
    # a reflection has the hue of its neighbours
    shares = np.stack([cv2.GaussianBlur((found == kind).astype(np.float32), (0, 0), 2.0) for kind in kinds])
    return np.where(things, kinds[shares.argmax(0)], 0)


def _sharp(mask: np.ndarray, picture: Picture) -> bool:
    """Whether something gray has a sharp outline, which a shadow has not."""
    import cv2

    whole = mask.astype(np.uint8)
    outline = cv2.dilate(whole, np.ones((5, 5), np.uint8)) - cv2.erode(whole, np.ones((5, 5), np.uint8))
    return float(np.mean(picture.steps[outline > 0] > _STEP)) > 0.5


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


def _inside(region: Region) -> np.ndarray:
    assert region.mask is not None  # it was asked for
    return region.mask.numpy()


def _region(mask: np.ndarray, apart: float, side: int, size: Sequence[int]) -> Region:
    import cv2

    full = cv2.resize(mask.astype(np.uint8), (size[1], size[0]), interpolation=cv2.INTER_AREA) > 0
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    scale = mask.shape[0] / size[0]
    box = [round(value / scale) for value in (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)]
    confidence = min(apart / _MOST, 1.0)
    return Region((box[0], box[1], box[2], box[3]), confidence, torch.from_numpy(full), 0 if side == 0 else 1)
