"""What stands on a plain ground, and of which hue, whatever the light."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

SIDE = 256
"""Longer side in which pictures are compared; all lengths below are pixels of it."""
_STEP, _HUE_STEP = 0.03, 0.06
"""Slope of the logarithms' brightness and colour at which a thing may begin."""
_GAP = 2
"""Half of the widest gap in an outline through which the ground does not get in."""
COLORED = 0.25
"""Colour difference to the ground from which on a pixel has a hue."""
_HUES = 90


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


def resized(values: np.ndarray, side: int) -> np.ndarray:
    """Values ``(H, W)`` or ``(H, W, C)`` of a picture whose longer side has ``side`` pixels then."""
    import cv2

    height, width = values.shape[:2]
    scale = side / max(height, width)
    how = cv2.INTER_LINEAR if scale > 1 else cv2.INTER_AREA
    return np.asarray(cv2.resize(values, (round(width * scale), round(height * scale)), interpolation=how))


def picture_of(image: Tensor) -> Picture:
    """What things are looked for in.

    Args:
        image: uint8 ``(3, H, W)``.
    """
    import cv2

    values = np.log(resized(image.permute(1, 2, 0).numpy().astype(np.float32), SIDE) + 16)
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
    colored = things & (strength > COLORED)
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


def is_sharp(mask: np.ndarray, picture: Picture) -> bool:
    """Whether something gray has a sharp outline, which a shadow has not."""
    import cv2

    whole = mask.astype(np.uint8)
    outline = cv2.dilate(whole, np.ones((5, 5), np.uint8)) - cv2.erode(whole, np.ones((5, 5), np.uint8))
    return float(np.mean(picture.steps[outline > 0] > _STEP)) > 0.5
