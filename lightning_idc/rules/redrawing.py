"""Redrawing: tells text that another font rasteriser drew from text that changed or moved.

The settings of fonts differ between machines (hinting, positions at fractions of pixels). Where they do, every glyph of
a page is redrawn, and no piece of text looks as it did, whereas after a change of the page most of the text is the
same, if perhaps elsewhere. :func:`redrawn_share` measures that; :mod:`~lightning_idc.rules.ink` tells whether the text
also has the same ink at the same positions.
"""

from __future__ import annotations

import numpy as np

from lightning_idc.rules.windows import window_max, window_min

ROWS, COLUMNS = 8, 16
"""Height and width of a piece of text in pixels."""
MIN_CONTRAST = 32
"""Smallest contrast of text around a smoothed pixel, in grey levels."""
MIN_SMOOTHED, MIN_EVEN = 6 / 128, 0.1
"""Smallest fractions of the pixels of a piece of text that smooth an edge, and that lie in an even area."""
MIN_PIECES = 20
"""Smallest number of pieces of text of a page on which anything can be said."""
_FACTOR = 6364136223846793005


def redrawn_share(before: np.ndarray, after: np.ndarray) -> float:
    """Fraction of the pieces of text of one image that the other one shows nowhere; 0 for too little text.

    Args:
        before: grey, uint8 ``(H, W)``.
        after: image of the same shape.
    """
    shares = []
    for image, other in ((before, after), (after, before)):
        rows, columns = np.nonzero(_pieces_of_text(image))
        if len(rows) < MIN_PIECES:
            return 0.0
        pieces = _hashes(image)[rows * ROWS, columns * COLUMNS]
        shares.append(float((~np.isin(pieces, _hashes(other))).mean()))
    return min(shares)


def _pieces_of_text(image: np.ndarray) -> np.ndarray:
    """Which rectangles of :data:`ROWS` by :data:`COLUMNS` pixels have smoothed strokes on an even ground."""
    height, width = image.shape
    image = image[: height // ROWS * ROWS, : width // COLUMNS * COLUMNS]
    low, high = window_min(image, 1), window_max(image, 1)
    smoothed = (image > low) & (image < high) & (high - low >= MIN_CONTRAST)
    means = [
        mask.reshape(height // ROWS, ROWS, width // COLUMNS, COLUMNS).mean((1, 3)) for mask in (smoothed, low == high)
    ]
    text: np.ndarray = (means[0] >= MIN_SMOOTHED) & (means[1] >= MIN_EVEN)
    return text


def _hashes(image: np.ndarray) -> np.ndarray:
    """A hash of the :data:`ROWS` by :data:`COLUMNS` pixels from each pixel to the right and down."""
    values = image.astype(np.uint64) + np.uint64(1)
    for axis, length in ((1, COLUMNS), (0, ROWS)):
        size, factor = 1, _FACTOR + axis * 2
        while size < length:  # twice as many pixels in each step; products wrap around
            parts = (slice(None, -size), slice(size, None))
            first, second = (values[(slice(None), part) if axis else (part,)] for part in parts)
            values = first * np.uint64(factor) + second
            size, factor = 2 * size, factor * factor % 2**64
    return values
