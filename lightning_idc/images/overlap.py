"""Lay two images over each other: at their upper left corners, or by an estimated shift of the whole image."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import fft

from lightning_idc.images.raw import RawImage

MAX_SHIFT = 64
"""Largest shift that :func:`estimate_shift` finds for images of equal size, in pixels."""
_NUM_PEAKS = 4


@dataclass(frozen=True, slots=True)
class Overlap:
    """What two images have in common.

    Args:
        first: First image, cropped to the common part.
        second: Second image, cropped to the common part.
        canvas: Height and width of the smallest canvas of both images; for images of equal size that of the first one.
        rows: Rows of the common part in the canvas.
        columns: Columns of the common part in the canvas.
        shift: Pixels to the right and down by which the content of the second image is shifted.
        border_differs: Whether the rest of the canvas, which one image shows, differs; False for images of equal size,
            in which a shift of the view explains it.
    """

    first: RawImage
    second: RawImage
    canvas: tuple[int, int]
    rows: slice
    columns: slice
    shift: tuple[int, int] = (0, 0)
    border_differs: bool = True


def overlap_of(first: RawImage, second: RawImage, register: bool = False) -> Overlap:
    """Crop two images to what they have in common.

    Args:
        first: First image.
        second: Second image.
        register: Whether to estimate a shift; otherwise the upper left corners meet.
    """
    shift = estimate_shift(_grey(first), _grey(second)) if register else (0, 0)
    vertical = _span(first.size[0], second.size[0], shift[1])
    horizontal = _span(first.size[1], second.size[1], shift[0])
    same_size = first.size == second.size
    return Overlap(
        first=cropped(first, vertical.first, horizontal.first),
        second=cropped(second, vertical.second, horizontal.second),
        canvas=first.size if same_size else (vertical.length, horizontal.length),
        rows=vertical.first if same_size else vertical.canvas,
        columns=horizontal.first if same_size else horizontal.canvas,
        shift=shift,
        border_differs=not same_size,
    )


@dataclass(frozen=True, slots=True)
class _Span:
    """Common part of two images along one axis, in the first image, in the second one and in the canvas of both."""

    first: slice
    second: slice
    canvas: slice
    length: int


def _span(first: int, second: int, delta: int) -> _Span:
    """Common part along one axis.

    Args:
        first: Length of the first image.
        second: Length of the second image.
        delta: Pixels by which the content of the second image is shifted.
    """
    start, stop = max(0, -delta), min(first, second - delta)
    origin = max(0, delta)  # of the first image in the canvas
    return _Span(
        first=slice(start, stop),
        second=slice(start + delta, stop + delta),
        canvas=slice(start + origin, stop + origin),
        length=max(first, second - delta) + origin,
    )


def cropped(image: RawImage, rows: slice, columns: slice) -> RawImage:
    """Crop an image with its masks."""
    if (rows.start, columns.start) == (0, 0) and (rows.stop, columns.stop) == image.size:
        return image
    return replace(
        image,
        values=image.values[:, rows, columns],
        missing=None if image.missing is None else image.missing[:, rows, columns],
        alpha=None if image.alpha is None else image.alpha[rows, columns],
    )


def estimate_shift(first: np.ndarray, second: np.ndarray, max_shift: int = MAX_SHIFT) -> tuple[int, int]:
    """Estimate by how many pixels to the right and down the content of the second image is shifted.

    The shifts at the highest peaks of the phase correlation are tried, and the one with the most equal pixels is taken;
    no shift, unless another one has more equal pixels.

    Args:
        first: Grey image ``(H, W)``.
        second: Grey image; its size may differ.
        max_shift: Largest shift, besides the difference of the sizes.
    """
    height, width = (max(sides) for sides in zip(first.shape, second.shape, strict=True))
    if np.array_equal(first, second):
        return 0, 0
    spectra = []
    for image in (first, second):
        centred = np.zeros((height, width), np.float32)
        centred[: image.shape[0], : image.shape[1]] = image - np.median(image)
        spectra.append(fft.rfft2(centred, (fft.next_fast_len(height), fft.next_fast_len(width))))
    cross = spectra[1] * spectra[0].conj()
    cross /= np.abs(cross) + 1e-6 * float(np.abs(cross).max()) + 1e-9
    surface = fft.irfft2(cross, s=(fft.next_fast_len(height), fft.next_fast_len(width)))
    limits = [max_shift + abs(a - b) for a, b in zip(first.shape, second.shape, strict=True)]
    candidates = [(0, 0)]
    for _ in range(_NUM_PEAKS):
        row, column = np.unravel_index(int(surface.argmax()), surface.shape)
        surface[row, column] = -np.inf
        dy, dx = (
            int(index) - side * (index > side // 2) for index, side in zip((row, column), surface.shape, strict=True)
        )
        if abs(dy) <= min(limits[0], height // 2) and abs(dx) <= min(limits[1], width // 2):
            candidates.append((dx, dy))
    return max(candidates, key=lambda shift: _equal_edges(first, second, shift))


def _equal_edges(first: np.ndarray, second: np.ndarray, shift: tuple[int, int]) -> int:
    """Number of pixels beside an edge of the first image that are equal after a shift; even areas fit any shift."""
    dx, dy = shift
    top, left = max(0, -dy), max(0, -dx)
    bottom, right = min(first.shape[0], second.shape[0] - dy), min(first.shape[1], second.shape[1] - dx)
    if bottom - top < 2 or right - left < 2:
        return 0
    one = first[top:bottom, left:right]
    other = second[top + dy : bottom + dy, left + dx : right + dx]
    edges = np.zeros(one.shape, bool)
    edges[:, 1:] |= one[:, 1:] != one[:, :-1]
    edges[1:] |= one[1:] != one[:-1]
    return int(((one == other) & edges).sum())


def _grey(image: RawImage) -> np.ndarray:
    """Mean of the bands ``(H, W)`` as float32; transparent pixels are black, so that white logos keep their outline."""
    grey: np.ndarray = np.nan_to_num(image.values.mean(0, dtype=np.float32), posinf=0.0, neginf=0.0)
    return grey if image.alpha is None else np.where(image.alpha > 0, grey, 0).astype(np.float32)
