"""Segment objects on a plain ground, and assign them hues that do not depend on the light."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

SIDE = 256
"""Longer side, in pixels, to which images are resized for comparison; unit of all lengths below."""
_STEP, _HUE_STEP = 0.03, 0.06
"""Minimum gradients of log brightness and of log colour at an object boundary."""
_GAP = 2
"""Half of the widest gap in an outline that is closed."""
COLORED = 0.25
"""Minimum colour difference from the ground of a pixel with a hue."""
_HUES = 90


@dataclass(frozen=True, slots=True)
class SeparatedImage:
    """Image separated into ground and objects.

    Args:
        values: two log colour differences from the ground and half of the log brightness, ``(H, W, 3)``.
        ground: mask of the ground, bool ``(H, W)``.
        steps: gradient of the log brightness, ``(H, W)``.
    """

    values: np.ndarray
    ground: np.ndarray
    steps: np.ndarray


def resized(values: np.ndarray, side: int) -> np.ndarray:
    """Resize ``(H, W)`` or ``(H, W, C)`` so that the longer side has ``side`` pixels."""
    import cv2

    height, width = values.shape[:2]
    scale = side / max(height, width)
    interpolation_mode = cv2.INTER_LINEAR if scale > 1 else cv2.INTER_AREA
    return np.asarray(
        cv2.resize(values, (round(width * scale), round(height * scale)), interpolation=interpolation_mode)
    )


def separate_ground(image: Tensor) -> SeparatedImage:
    """Separate an image into ground and objects.

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
    kernel = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * _GAP + 1,) * 2)
    _, parts = cv2.connectedComponents(cv2.erode(free, kernel), connectivity=4)
    border = np.concatenate([parts[0], parts[-1], parts[:, 0], parts[:, -1]])
    near_border = cv2.dilate(np.isin(parts, border[border > 0]).astype(np.uint8), kernel)
    ground = np.logical_and(near_border, free).astype(np.uint8)
    objects = cv2.morphologyEx(1 - ground, cv2.MORPH_OPEN, np.ones((5, 5), np.uint8))
    outlines, _ = cv2.findContours(objects, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    ground = cv2.drawContours(np.zeros_like(objects), outlines, -1, 1, -1) == 0
    ground_color = np.median(colors[ground], 0) if ground.any() else np.zeros(2)
    return SeparatedImage(np.dstack([colors - ground_color, light / 2]).astype(np.float32), ground, steps)


def _slope(values: np.ndarray) -> np.ndarray:
    import cv2

    across, down = cv2.Sobel(values, cv2.CV_32F, 1, 0, scale=1 / 8), cv2.Sobel(values, cv2.CV_32F, 0, 1, scale=1 / 8)
    return np.hypot(across, down)


def hues_of(separated: SeparatedImage) -> np.ndarray:
    """Label the hue of each pixel: 0 for the ground, 1 for gray, then the peaks of the image's hue histogram."""
    import cv2

    colors, objects = separated.values[..., :2], ~separated.ground
    strength = np.hypot(colors[..., 0], colors[..., 1])
    colored = objects & (strength > COLORED)
    labels = objects.astype(np.int32)
    if colored.any():
        angle = np.arctan2(colors[..., 1], colors[..., 0])[colored]
        hue_bin = ((angle / (2 * np.pi) + 0.5) * _HUES).astype(int) % _HUES
        counts = np.bincount(hue_bin, strength[colored], _HUES)
        bell = np.exp(-0.5 * (np.arange(-6, 7) / 2) ** 2)
        smooth = np.convolve(np.r_[counts[-6:], counts, counts[:6]], bell, "valid")
        neighbours = np.arange(_HUES)[:, None] + np.array([-1, 0, 1])
        peak = neighbours[np.arange(_HUES), smooth[neighbours % _HUES].argmax(1)] % _HUES
        for _ in range(_HUES.bit_length()):
            peak = peak[peak]
        labels[colored] = np.unique(peak, return_inverse=True)[1][hue_bin] + 2
    label_values = np.unique(labels[objects])
    if not len(label_values):
        return labels
    # gives reflections the hue of their neighbours
    votes = np.stack([cv2.GaussianBlur((labels == label).astype(np.float32), (0, 0), 2.0) for label in label_values])
    return np.where(objects, label_values[votes.argmax(0)], 0)


def is_sharp(mask: np.ndarray, separated: SeparatedImage) -> bool:
    """Whether a gray region has a sharp outline, unlike a shadow."""
    import cv2

    region = mask.astype(np.uint8)
    outline = cv2.dilate(region, np.ones((5, 5), np.uint8)) - cv2.erode(region, np.ones((5, 5), np.uint8))
    return float(np.mean(separated.steps[outline > 0] > _STEP)) > 0.5
