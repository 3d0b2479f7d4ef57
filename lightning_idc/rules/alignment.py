"""Alignment: removes the camera motion and the difference in lighting between two images.

1. :func:`estimate_motion` finds the shift by phase correlation and refines it to an affine motion by least squares.
2. :func:`warp` warps the before image to the view of the after image.
3. :func:`match_brightness` matches the brightness of the before image to the after image.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import fft, ndimage

from lightning_idc.rules.windows import gradients, pooled

MIN_GRADIENT = 6.0
"""Minimum gradient of the pixels used for alignment, in grey levels per pixel."""
MAX_EQUAL_DIFFERENCE = 2.0
"""Maximum difference of two equal pixels, in grey levels."""
MIN_GAIN = 0.25
"""Fraction of the difference that a motion must explain to be accepted."""
MAX_SHIFT = 0.25
"""Maximum shift as a fraction of a side."""
MIN_STEP = 0.05
"""The iteration ends at a step below this size, in pixels."""
BORDER = 2
"""Pixels along the borders of a warped image that are not compared."""
NUM_SAMPLES = 8_000
"""Number of pixels in the least-squares fit."""
MAX_DIFFERENCE = 30.0
"""Grey levels at which differences are clipped, since larger ones are changes and not motion."""


@dataclass(frozen=True, slots=True)
class Motion:
    """Maps pixels of the after image to the before image: ``matrix @ (x - cx, y - cy, 1) + (x, y)``.

    Args:
        matrix: Offset by x, y and 1 from the centre, ``(2, 3)``, in pixels.
        centre: x and y.
    """

    matrix: np.ndarray
    centre: tuple[float, float]

    @property
    def shift(self) -> tuple[float, float]:
        """Movement of the content from before to after, in pixels to the right and down."""
        return -float(self.matrix[0, 2]), -float(self.matrix[1, 2])

    @property
    def is_translation(self) -> bool:
        """Whether all pixels move by the same integer number of pixels, within a tenth."""
        corners = np.abs(self.matrix[:, :2]) @ np.array(self.centre)
        fraction = self.matrix[:, 2] - np.rint(self.matrix[:, 2])
        return bool((corners + np.abs(fraction) < 0.12).all())

    def offsets(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Offsets in x and y from pixels of the after image to the same content in the before image."""
        u, v = x - self.centre[0], y - self.centre[1]
        rows = [row[0] * u + row[1] * v + row[2] for row in self.matrix]
        return rows[0], rows[1]

    def box_before(self, box: tuple[int, int, int, int]) -> tuple[float, float, float, float]:
        """Bounding box in the before image of the content of a box in the after image; may lie outside the image.

        Args:
            box: x1 y1 x2 y2 in pixels, the last two exclusive.
        """
        left, top, right, bottom = box
        # centres of the four corner pixels
        columns, rows = np.array([left, left, right - 1, right - 1]), np.array([top, bottom - 1, top, bottom - 1])
        offset_x, offset_y = self.offsets(columns, rows)
        x, y = columns + offset_x, rows + offset_y
        return float(x.min()), float(y.min()), float(x.max()) + 1, float(y.max()) + 1


def estimate_motion(before: np.ndarray, after: np.ndarray) -> Motion | None:
    """Estimate the camera motion between two grey images; None if they are aligned.

    Args:
        before: Float32 ``(H, W)``.
        after: Image of the same size.
    """
    height, width = after.shape
    if min(height, width) < 16:
        return None
    x_slope, y_slope = gradients(after)
    active = np.abs(x_slope) + np.abs(y_slope) > MIN_GRADIENT
    if active.sum() < 50 or float((np.abs(after - before)[active] <= MAX_EQUAL_DIFFERENCE).mean()) > 0.5:
        return None
    points = _sample_points(active)
    centre = ((width - 1) / 2, (height - 1) / 2)
    best_motion, zero_residual = None, _residual(before, after, points, Motion(np.zeros((2, 3)), centre))
    min_residual = zero_residual
    for dx, dy in _candidates(before, after):
        motion = Motion(np.array([[0, 0, -dx], [0, 0, -dy]], float), centre)
        residual = _residual(before, after, points, motion)
        if residual < min_residual:
            best_motion, min_residual = motion, residual
    start = best_motion or Motion(np.zeros((2, 3)), centre)
    refined, residual = _refine(before, after, points, start, min_residual)
    if residual < 0.9 * min_residual:
        best_motion, min_residual = refined, residual
    return best_motion if min_residual < (1 - MIN_GAIN) * zero_residual else None


def warp(image: np.ndarray, motion: Motion) -> tuple[np.ndarray, np.ndarray]:
    """Warp the before image to the view of the after image.

    Returns the warped image and the mask ``(H, W)`` of its valid pixels.

    Args:
        image: Float32 ``(C, H, W)``.
        motion: Motion of the camera.
    """
    height, width = image.shape[-2:]
    valid = np.zeros((height, width), bool)
    if motion.is_translation:
        dx, dy = (round(value) for value in motion.matrix[:, 2])
        result = np.zeros_like(image)
        x, y = slice(max(0, -dx), min(width, width - dx)), slice(max(0, -dy), min(height, height - dy))
        source_x, source_y = slice(x.start + dx, x.stop + dx), slice(y.start + dy, y.stop + dy)
        result[..., y, x] = image[..., source_y, source_x]
        valid[y, x] = True
        return result, valid
    (a, b, c), (d, e, f) = motion.matrix
    cx, cy = motion.centre
    matrix = np.array([[1 + e, d], [b, 1 + a]])
    offset = (f - d * cx - e * cy, c - a * cx - b * cy)
    warped = [ndimage.affine_transform(band, matrix, offset, order=1, mode="nearest") for band in image]
    y, x = np.mgrid[:height, :width].astype(np.float32)
    offset_x, offset_y = motion.offsets(x, y)
    x, y = x + offset_x, y + offset_y
    valid = (x >= BORDER) & (x <= width - 1 - BORDER) & (y >= BORDER) & (y <= height - 1 - BORDER)
    return np.stack(warped), valid


def match_brightness(before: np.ndarray, after: np.ndarray, valid: np.ndarray) -> tuple[np.ndarray, float]:
    """Match the brightness of the before image to the after image.

    A gain that varies smoothly over the image and an offset are fitted to pixels that differ little. They are applied
    only where they explain most of the difference.

    Args:
        before: Float32 ``(C, H, W)``.
        after: Image of the same shape.
        valid: Mask ``(H, W)`` of pixels in the view of both images.

    Returns:
        The before image with matched brightness, and the ratio of mean brightnesses; 1 for no difference.
    """
    side = max(1, round(np.sqrt(valid.size / NUM_SAMPLES)))
    differences = np.abs(after[:, ::side, ::side] - before[:, ::side, ::side])
    if float(np.median(differences)) < 1:
        return before, 1.0
    first, second = pooled(before, side), pooled(after, side)
    usable = (pooled(valid.astype(np.float32), side) == 1) & (second.max(0) < 250) & (first.max(0) > 4)
    if usable.sum() < 100:
        return before, 1.0
    rows, columns = np.nonzero(usable)
    height, width = usable.shape
    terms = _quadratic_features(columns / max(width - 1, 1) * 2 - 1, rows / max(height - 1, 1) * 2 - 1)
    x = np.linspace(-1, 1, before.shape[2], dtype=np.float32)[None]
    y = np.linspace(-1, 1, before.shape[1], dtype=np.float32)[:, None]
    gains, coefficients, residuals = [], [], []
    for a, b in zip(first[:, usable], second[:, usable], strict=True):
        features = np.column_stack([terms * a[:, None], np.ones_like(a)])  # (N, 7)
        weights, residual = _trimmed_fit(features, b - a)
        coefficients.append(weights)
        residuals.append(residual)
        gains.append(float(np.mean(a + features @ weights)) / max(float(np.mean(a)), 1.0))
    if not all(residual < 0.7 * zero_residual for residual, zero_residual in residuals) or not all(
        0.5 < gain < 2 for gain in gains
    ):
        return before, 1.0
    result = np.empty_like(before)
    for band, (values, weights) in enumerate(zip(before, coefficients, strict=True)):
        factor = sum(w * part for w, part in zip(weights[:-1], _quadratic_terms(x, y), strict=True))
        result[band] = np.clip(values * (1 + factor) + weights[-1], 0, 255)
    return result, float(np.mean(gains))


def _trimmed_fit(features: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, tuple[float, float]]:
    """Fit weights by least squares without outliers.

    Args:
        features: Matrix ``(N, F)``.
        target: Vector ``(N,)``.

    Returns:
        The weights ``(F,)``, and the median residual with these weights and with zero weights.
    """
    zero_residual = float(np.median(np.abs(target)))
    if zero_residual < 1:
        return np.zeros(features.shape[1]), (0.0 if zero_residual == 0 else zero_residual, zero_residual + 1e-9)
    residuals = np.abs(target - np.median(target))
    weights = np.zeros(features.shape[1])
    for _ in range(5):
        is_inside = residuals <= max(3 * float(np.median(residuals)), 1.0)
        matrix = features[is_inside]
        ridge = np.diag(1e-3 * (matrix**2).sum(0) + 1e-6)
        ridge[0, 0] = ridge[-1, -1] = 1e-6
        weights = np.linalg.solve(matrix.T @ matrix + ridge, matrix.T @ target[is_inside])
        residuals = np.abs(target - features @ weights)
    return weights, (float(np.median(residuals)), zero_residual)


def _quadratic_terms(x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    """Return the terms 1, x, y, xy, x² and y² of a polynomial."""
    one = np.ones(np.broadcast_shapes(x.shape, y.shape), np.float32)
    return [one, x * one, y * one, x * y, x * x * one, y * y * one]


def _quadratic_features(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.column_stack(_quadratic_terms(x.astype(np.float32), y.astype(np.float32)))


def _sample_points(active: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of about :data:`NUM_SAMPLES` active pixels."""
    rows, columns = np.nonzero(active)
    step = max(1, len(rows) // NUM_SAMPLES)
    return rows[::step], columns[::step]


def _candidates(before: np.ndarray, after: np.ndarray) -> list[tuple[int, int]]:
    """Compute the shifts at the highest peaks of the phase correlation, in pixels to the right and down."""
    height, width = after.shape
    window = np.outer(np.hanning(height), np.hanning(width)).astype(np.float32)
    first, second = (fft.rfft2((image - image.mean()) * window) for image in (before, after))
    cross = second * first.conj()
    cross /= np.abs(cross) + 1e-3 * float(np.abs(cross).mean()) + 1e-9
    surface = fft.irfft2(cross, s=(height, width))
    surface += ndimage.uniform_filter(surface, 3, mode="wrap")  # a shift by half a pixel has a broad peak
    peaks: list[tuple[int, int]] = []
    for _ in range(4):
        row, column = divmod(int(surface.argmax()), width)
        surface[np.ix_(np.arange(row - 2, row + 3) % height, np.arange(column - 2, column + 3) % width)] = -np.inf
        dy, dx = row - height * (row > height // 2), column - width * (column > width // 2)
        if (dx or dy) and abs(dx) <= MAX_SHIFT * width and abs(dy) <= MAX_SHIFT * height:
            peaks.append((dx, dy))
    return peaks


def _sampled(image: np.ndarray, points: tuple[np.ndarray, np.ndarray], motion: Motion) -> tuple[np.ndarray, np.ndarray]:
    """Sample the before image at pixels of the after image, and mark the samples that are inside the image."""
    rows, columns = points
    offset_x, offset_y = motion.offsets(columns, rows)
    x, y = columns + offset_x, rows + offset_y
    is_inside = (x >= 0) & (x <= image.shape[1] - 1) & (y >= 0) & (y <= image.shape[0] - 1)
    return ndimage.map_coordinates(image, [y, x], order=1, mode="nearest"), is_inside


def _residual(before: np.ndarray, after: np.ndarray, points: tuple[np.ndarray, np.ndarray], motion: Motion) -> float:
    """Compute the mean clipped difference after a motion is compensated."""
    values, is_inside = _sampled(before, points, motion)
    if is_inside.sum() < 50:
        return MAX_DIFFERENCE
    difference = np.abs(after[points] - values)[is_inside]
    return float(np.minimum(difference, MAX_DIFFERENCE).mean())


def _refine(
    before: np.ndarray, after: np.ndarray, points: tuple[np.ndarray, np.ndarray], motion: Motion, residual: float
) -> tuple[Motion, float]:
    """Refine an affine motion by Gauss-Newton steps over pixels that differ little (Lucas and Kanade)."""
    rows, columns = points
    slopes = gradients(before)
    u, v = columns - motion.centre[0], rows - motion.centre[1]
    best_motion, min_residual = motion, residual
    for _ in range(4):
        values, is_inside = _sampled(before, points, motion)
        offset_x, offset_y = motion.offsets(columns, rows)
        positions = (np.rint(rows + offset_y).astype(int), np.rint(columns + offset_x).astype(int))
        clipped = tuple(np.clip(index, 0, side - 1) for index, side in zip(positions, before.shape, strict=True))
        x_slope, y_slope = (slope[clipped] for slope in slopes)
        residuals = after[points] - values
        weight = is_inside / (1 + (residuals / 12) ** 2)
        # Jacobian (N, 6) of the sampled values
        matrix = np.column_stack([x_slope * u, x_slope * v, x_slope, y_slope * u, y_slope * v, y_slope])
        normal = matrix.T @ (matrix * weight[:, None])
        ridge = 1e-4 * np.diag(np.diag(normal)) + 1e-6 * np.eye(6)
        step = np.linalg.solve(normal + ridge, matrix.T @ (residuals * weight))
        motion = Motion(motion.matrix + step.reshape(2, 3), motion.centre)
        if float(np.abs(step.reshape(2, 3) @ (*motion.centre, 1.0)).max()) < MIN_STEP:
            break
        residual = _residual(before, after, points, motion)
        if residual < min_residual:
            best_motion, min_residual = motion, residual
    return best_motion, min_residual
