"""Colours: English colour names of pixels, and of regions with one dominant colour."""

from __future__ import annotations

import numpy as np
from scipy import ndimage

NAMES = ("black", "grey", "white", "red", "orange", "brown", "yellow", "green", "cyan", "blue", "purple", "pink")
"""Colour names in the order of their indices."""
_BLACK, _GREY, _WHITE, _RED, _ORANGE, _BROWN, _YELLOW, _GREEN, _CYAN, _BLUE, _PURPLE, _PINK = range(len(NAMES))
_SECTORS = ((14, _RED), (42, _ORANGE), (68, _YELLOW), (162, _GREEN), (195, _CYAN), (252, _BLUE), (288, _PURPLE))
MAX_PIXELS = 4000
"""Maximum number of pixels per region that are classified."""


def name_pixels(pixels: np.ndarray) -> np.ndarray:
    """Classify the colour of each pixel, as an index in :data:`NAMES`.

    Args:
        pixels: Colours ``(3, N)`` from 0 to 255.
    """
    red, green, blue = pixels.astype(np.float32)
    high, low = pixels.max(0).astype(np.float32), pixels.min(0).astype(np.float32)
    chroma = high - low
    nonzero_chroma = np.maximum(chroma, 1)
    hue = np.where(
        high == red,
        (green - blue) / nonzero_chroma % 6,
        np.where(high == green, (blue - red) / nonzero_chroma + 2, (red - green) / nonzero_chroma + 4),
    )
    hue = hue * 60
    names = np.full(pixels.shape[1], _PINK)
    for end, name in reversed(_SECTORS):
        names[hue < end] = name
    names[hue >= 342] = _RED
    saturation = chroma / np.maximum(high, 1)
    is_warm = (hue < 50) | (hue >= 350)
    names[is_warm & (high < 160) & (hue >= 14) & (hue < 50)] = _BROWN
    names[is_warm & (high < 190) & (saturation < 0.55) & (hue < 50)] = _BROWN
    names[((hue >= 320) | (hue < 14)) & (high > 200) & (saturation < 0.5)] = _PINK
    is_pale = (chroma < 24) | (saturation < 0.14)
    names[is_pale] = np.where(high[is_pale] > 208, _WHITE, _GREY)
    names[(high < 50) | (is_pale & (high < 64))] = _BLACK
    return names


def colour_of(pixels: np.ndarray, min_fraction: float = 0.5) -> str | None:
    """Return the name of the most frequent colour; None if its fraction is below the minimum.

    Args:
        pixels: Colours ``(3, N)`` from 0 to 255.
        min_fraction: Minimum fraction of the pixels with this colour.

    Example:
        >>> colour_of(np.array([[250], [10], [20]]))
        'red'
    """
    pixels = pixels[:, :: max(1, pixels.shape[1] // MAX_PIXELS)]
    counts = np.bincount(name_pixels(pixels), minlength=len(NAMES))
    name = int(counts.argmax())
    return NAMES[name] if counts[name] >= min_fraction * pixels.shape[1] else None


def histogram(pixels: np.ndarray) -> np.ndarray:
    """Compute a smoothed colour histogram ``(512,)``, which sums to 1, of pixels ``(3, N)``."""
    red, green, blue = (pixels // 32).astype(np.intp)
    counts = np.bincount(red * 64 + green * 8 + blue, minlength=512).astype(np.float32).reshape(8, 8, 8)
    counts = ndimage.gaussian_filter(counts, 0.7, mode="nearest")
    result: np.ndarray = counts.ravel() / max(float(counts.sum()), 1e-9)
    return result
