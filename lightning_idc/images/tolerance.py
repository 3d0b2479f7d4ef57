"""Tolerance of a comparison: differences of pixels that do not count."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lightning_idc.utils.bounds import NonNegativeFloat, NonNegativeInt, Share, check_fields

MAX_YIQ = 35215.0
"""Largest weighted YIQ distance of two RGB colours, squared."""
_YIQ = np.array(
    [
        [0.29889531, 0.58662247, 0.11448223],
        [0.59597799, -0.27417610, -0.32180189],
        [0.21147017, -0.52261711, 0.31114694],
    ],
    np.float32,
)
_YIQ_WEIGHTS = (0.5053, 0.299, 0.1957)
_NEIGHBOURS = [(dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if dy or dx]
_MIN_SIBLINGS = 3
"""Minimum number of equal neighbours of a pixel inside an even area."""
_MAX_EQUAL = 2
"""Maximum number of neighbours as bright as an anti-aliased pixel."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Limits below which a difference does not count. The defaults are exact.

    Args:
        value: Largest difference at which two values count as equal, in the unit of the files.
        pixels: Number of pixels of a pair that may differ.
        share: Fraction of the pixels of a pair that may differ.
        perceptual: Largest perceived colour distance of equal pixels, from 0 to 1, such as 0.1 (black and white are
            0.97); it replaces ``value`` for grey and RGB images. None for no perceptual distance.
        antialiasing: Whether differing pixels that are anti-aliased in either image count.
    """

    value: NonNegativeFloat = 0.0
    pixels: NonNegativeInt = 0
    share: Share = 0.0
    perceptual: Share | None = None
    antialiasing: bool = True

    def __post_init__(self) -> None:
        check_fields(self)

    def allows(self, pixels: int, total: int) -> bool:
        """Whether a pair with so many differing pixels counts as equal.

        Args:
            pixels: Number of differing pixels.
            total: Number of compared pixels.
        """
        return pixels <= max(self.pixels, self.share * total)


def perceived_distance(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Compute the perceived colour distance ``(H, W)`` of each pixel, from 0 to 1; black and white are 0.97.

    The weighted YIQ distance of Kotsarenko and Ramos, "Measuring perceived color difference using YIQ NTSC transmission
    color space in mobile applications" (2010).

    Args:
        first: Float32 RGB ``(3, H, W)`` from 0 to 255.
        second: Image of the same shape.
    """
    yiq = np.tensordot(_YIQ, first - second, 1)
    squared = sum(weight * part * part for weight, part in zip(_YIQ_WEIGHTS, yiq, strict=True))
    distance: np.ndarray = np.sqrt(squared / MAX_YIQ)
    return distance


def antialiased(first: np.ndarray, second: np.ndarray, differs: np.ndarray) -> np.ndarray:
    """Find the differing pixels that are anti-aliased in either image: bool ``(H, W)``.

    A pixel is anti-aliased if it has brighter and darker neighbours, at most two neighbours of its own brightness, and
    its brightest or its darkest neighbour is part of an even area in both images: it smooths an edge between two areas.
    The idea of V. Vysniauskas, "Anti-aliased Pixel and Intensity Slope Detector" (2009), which common tools for visual
    regression use.

    Args:
        first: Values ``(C, H, W)``.
        second: Image of the same shape.
        differs: Differing pixels, bool ``(H, W)``.
    """
    result = np.zeros_like(differs)
    rows, columns = np.nonzero(differs)
    if len(rows):
        even = [_in_even_area(image) for image in (first, second)]
        in_both = np.pad(even[0] & even[1], 1)
        smooths = [_smooths_edge(image, in_both, rows, columns) for image in (first, second)]
        result[rows, columns] = smooths[0] | smooths[1]
    return result


def _smooths_edge(image: np.ndarray, even: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Whether the pixels at (rows, columns) lie between a brighter and a darker pixel, one of them in an even area."""
    brightness = np.pad(image.mean(0, dtype=np.float32), 1, mode="edge")
    indices = [(rows + 1 + dy, columns + 1 + dx) for dy, dx in _NEIGHBOURS]
    slopes = np.stack([brightness[index] for index in indices]) - brightness[rows + 1, columns + 1]  # (8, N)
    even_neighbours = np.stack([even[index] for index in indices])
    order = np.arange(len(rows))
    darkest, brightest = slopes.argmin(0), slopes.argmax(0)
    between: np.ndarray = (slopes[darkest, order] < 0) & (slopes[brightest, order] > 0)
    between &= (slopes == 0).sum(0) <= _MAX_EQUAL
    between &= even_neighbours[darkest, order] | even_neighbours[brightest, order]
    return between


def _in_even_area(image: np.ndarray) -> np.ndarray:
    """Whether each pixel has at least :data:`_MIN_SIBLINGS` equal neighbours, bool ``(H, W)``."""
    counts = np.zeros(image.shape[1:], np.uint8)
    for here, there in _shifted(image.shape[1:]):
        same = (image[(slice(None), *here)] == image[(slice(None), *there)]).all(0)
        counts[here] += same
        counts[there] += same
    return counts >= _MIN_SIBLINGS


def _shifted(size: tuple[int, ...]) -> Iterator[tuple[tuple[slice, slice], tuple[slice, slice]]]:
    """Slices of all pairs of neighbouring pixels, each pair once."""
    height, width = size
    for dy, dx in ((0, 1), (1, 0), (1, 1), (1, -1)):
        left, right = max(0, -dx), width - max(0, dx)
        here = slice(0, height - dy), slice(left, right)
        yield here, (slice(dy, height), slice(left + dx, right + dx))
