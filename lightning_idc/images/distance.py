"""Distance of each pixel of two images, in stored values, in opacity or as perceived."""

from __future__ import annotations

import numpy as np

from lightning_idc.images.raw import RawImage, max_alpha
from lightning_idc.images.tolerance import Tolerance, perceived_distance


def differing(first: RawImage, second: RawImage, tolerance: Tolerance) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compare each pixel of two images of one size and one colour model.

    Args:
        first: First image, whose unit the differences have.
        second: Second image.
        tolerance: Differences that do not count.

    Returns:
        Arrays ``(H, W)``: the largest difference of a value, whether the pixel differs, and whether it differs by its
        opacity only.
    """
    difference = _difference(first, second)
    is_different = difference > tolerance.value
    if tolerance.perceptual is not None and _is_colour(first) and _is_colour(second):
        grounds = (0.0, 255.0) if first.alpha is not None or second.alpha is not None else (255.0,)
        distances = [perceived_distance(_on_ground(first, ground), _on_ground(second, ground)) for ground in grounds]
        is_different = np.maximum.reduce(distances) > tolerance.perceptual
        return difference, is_different, np.zeros_like(is_different)
    if first.alpha is None and second.alpha is None:
        return difference, is_different, np.zeros_like(is_different)
    alphas = [_opacity(image) for image in (first, second)]
    is_different &= (alphas[0] > 0) | (alphas[1] > 0)
    transparency = np.abs(alphas[0] - alphas[1]) * _max_value(first)
    opacity_only = (transparency > tolerance.value) & (~is_different | (alphas[0] == 0) | (alphas[1] == 0))
    is_different |= transparency > tolerance.value
    return np.maximum(np.where(is_different, difference, 0), transparency), is_different, opacity_only


def _max_value(image: RawImage) -> float:
    """Return the largest value at the bit depth of an image."""
    return float(2**image.bits - 1) if image.values.dtype.kind == "u" else float(max_alpha(image.values.dtype))


def _difference(first: RawImage, second: RawImage) -> np.ndarray:
    """Compute the largest difference over the bands of each pixel, ``(H, W)``, in the unit of the first image."""
    a, b = first.values, second.values
    unsigned = a.dtype.kind == b.dtype.kind == "u"
    if unsigned and a.dtype == b.dtype and first.bits == second.bits:
        distance: np.ndarray = np.where(a > b, a - b, b - a).max(0)
        return distance
    # products of integers are exact; fractions would be rounded
    scales = (_max_value(first), _max_value(second)) if unsigned and first.bits != second.bits else (1.0, 1.0)
    with np.errstate(invalid="ignore"):  # NaN and infinity count as missing and are masked later
        scaled = np.abs(a.astype(np.float64) * scales[1] - b.astype(np.float64) * scales[0])
    difference: np.ndarray = (scaled / scales[1]).max(0)
    return difference


def _opacity(image: RawImage) -> np.ndarray:
    """Return the opacity ``(H, W)`` as a fraction from 0 to 1."""
    if image.alpha is None:
        return np.ones(image.size)
    return image.alpha.astype(np.float64) / max_alpha(image.alpha.dtype)


def _is_colour(image: RawImage) -> bool:
    """Whether the values are grey or RGB of unsigned integers."""
    return len(image.values) in (1, 3) and not image.space and image.values.dtype.kind == "u"


def _on_ground(image: RawImage, ground: float) -> np.ndarray:
    """RGB ``(3, H, W)`` from 0 to 255 as float32, over a grey ground."""
    values = np.broadcast_to(image.values, (3, *image.size)).astype(np.float32) * np.float32(255 / _max_value(image))
    if image.alpha is None:
        return values
    opacity = _opacity(image).astype(np.float32)
    return values * opacity + np.float32(ground) * (1 - opacity)


def with_opacity(image: RawImage) -> np.ndarray:
    """Values with the opacity as a further band; colours under full transparency are 0."""
    if image.alpha is None:
        return image.values
    visible = np.where(image.alpha > 0, image.values, 0)
    return np.concatenate([visible, image.alpha[None].astype(visible.dtype)])
