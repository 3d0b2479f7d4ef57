"""Colors as single numbers, so that pixels can be compared and counted; images are uint8 ``(3, ...)``."""

from __future__ import annotations

import numpy as np


def color_codes(pixels: np.ndarray) -> np.ndarray:
    """One number, int32 ``(...)``, for the color of each pixel ``(3, ...)``."""
    red, green, blue = pixels.astype(np.int32)
    codes: np.ndarray = (red << 16) | (green << 8) | blue
    return codes


def most_frequent_color(pixels: np.ndarray) -> np.ndarray:
    """The most frequent color, int16 ``(3,)``, of pixels ``(3, ...)``."""
    values, counts = np.unique(color_codes(pixels), return_counts=True)
    color = int(values[counts.argmax()])
    return np.array([color >> 16, color >> 8 & 255, color & 255], np.int16)
