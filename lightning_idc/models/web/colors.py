"""Colors as single numbers, so that pixels can be compared and counted; images are uint8 ``(3, ...)``."""

from __future__ import annotations

import numpy as np

SAMPLES = 101
"""Number of pixels of which the most frequent color is the first guess."""


def color_codes(pixels: np.ndarray) -> np.ndarray:
    """One number, int32 ``(...)``, for the color of each pixel ``(3, ...)``."""
    red, green, blue = pixels.astype(np.int32)
    codes: np.ndarray = (red << 16) | (green << 8) | blue
    return codes


def most_frequent_color(pixels: np.ndarray) -> np.ndarray:
    """The most frequent color, int16 ``(3,)``, of pixels ``(3, ...)``."""
    codes = color_codes(pixels).ravel()
    color = _most_frequent(codes[:: max(1, codes.size // SAMPLES)])
    # a color of more than half of the pixels is the one, and counting it is faster than sorting all pixels
    if 2 * np.count_nonzero(codes == color) <= codes.size:
        color = _most_frequent(codes)
    return np.array([color >> 16, color >> 8 & 255, color & 255], np.int16)


def _most_frequent(codes: np.ndarray) -> int:
    values, counts = np.unique(codes, return_counts=True)
    return int(values[counts.argmax()])
