"""Count the pixels that differ between two images, by the values stored in their files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np

from lightning_idc.images.decode import decode_pages
from lightning_idc.images.raw import File, RawImage, max_alpha
from lightning_idc.images.srgb import to_srgb
from lightning_idc.utils.bounds import NonNegativeFloat, NonNegativeInt, check_fields

Ignore = Callable[[tuple[int, int]], "np.ndarray | None"]
"""Function from (height, width) to a bool mask ``(H, W)`` of pixels to leave out; None leaves out nothing."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Limits below which a difference does not count.

    Args:
        value: Largest difference at which two values count as equal, in the unit of the files.
        pixels: Number of pixels of a pair that may differ.
    """

    value: NonNegativeFloat = 0.0
    pixels: NonNegativeInt = 0

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class ImageComparison:
    """Result of comparing two images.

    Args:
        pixels: Number of pixels that differ.
        largest: Greatest difference of a value, in the unit of the files.
        total: Number of pixels of all images of the file.
        missing: Number of pixels that were not compared: marked as missing in either file, or ignored.
        subject: Description of the compared values, such as ``3 bands of 8 bits``.
    """

    pixels: int
    largest: float
    total: int
    missing: int
    subject: str

    @property
    def equal(self) -> bool:
        """Whether no pixel differs."""
        return not self.pixels

    def __str__(self) -> str:
        excluded = f", {self.missing:,} not compared" if self.missing else ""
        amount = f" by up to {self.largest:g}" if self.pixels and self.largest else ""
        return f"{self.pixels:,} of {self.total:,} pixels differ{amount}{excluded} ({self.subject})"


def equal(first: RawImage, second: RawImage) -> bool:
    """Whether no pixel of two images differs."""
    return compare(first, second).equal


def compare(first: RawImage, second: RawImage, ignore: Ignore | None = None, tolerance: float = 0.0) -> ImageComparison:
    """Compare the stored values of two images: all bands and the opacity, before any value range is applied.

    Pixels that are fully transparent in both images are equal regardless of their colours. Values of different bit
    depths are compared as fractions of their maximum, a grey image as three equal bands, and colours of different
    profiles in sRGB.

    Args:
        first: First image, whose unit the result has.
        second: Second image.
        ignore: Function from height and width to a mask of pixels to leave out.
        tolerance: Largest difference at which two values count as equal, in the unit of the files.
    """
    total = first.size[0] * first.size[1]
    subject = _subject(first)
    if not _comparable(first, second):
        mismatch = f"{subject} against {_subject(second)}" if subject != _subject(second) else subject
        if first.size != second.size:
            mismatch = f"{first.size[1]}x{first.size[0]} against {second.size[1]}x{second.size[0]} pixels"
        all_pixels = max(total, second.size[0] * second.size[1])
        return ImageComparison(pixels=all_pixels, largest=0.0, total=total, missing=0, subject=mismatch)
    is_different, difference, excluded = _compare_pixels(first, second, ignore, tolerance)
    pixels = int(is_different.sum())
    return ImageComparison(
        pixels=pixels,
        largest=float(difference[is_different].max()) if pixels else 0.0,
        total=total,
        missing=0 if excluded is None else int(excluded.sum()),
        subject=subject,
    )


def difference_mask(
    first: RawImage, second: RawImage, ignore: Ignore | None = None, tolerance: float = 0.0
) -> np.ndarray:
    """Mark the pixels that :func:`compare` counts, as a bool mask ``(H, W)`` of the size of the second image.

    All pixels are marked if the two have different sizes or bands.

    Args:
        first: First image.
        second: Second image.
        ignore: Function from height and width to a mask of pixels to leave out.
        tolerance: Largest difference at which two values count as equal, in the unit of the files.
    """
    if not _comparable(first, second):
        return np.ones(second.size, dtype=bool)
    return _compare_pixels(first, second, ignore, tolerance)[0]


def _comparable(first: RawImage, second: RawImage) -> bool:
    """Whether two images have the same size and colour model, and as many bands or one and three."""
    counts = {len(first.values), len(second.values)}
    same_colour_model = (first.space, first.inverted) == (second.space, second.inverted)
    return first.size == second.size and same_colour_model and (len(counts) == 1 or counts == {1, 3})


def _compare_pixels(
    first: RawImage, second: RawImage, ignore: Ignore | None, tolerance: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Compute which pixels differ, the differences in the unit of the first image, and the mask of excluded pixels."""
    if first.profile != second.profile:
        first, second = _in_srgb(first), _in_srgb(second)
    difference = _difference(first, second)  # (H, W)
    is_different = difference > tolerance
    if first.alpha is not None or second.alpha is not None:
        alphas = [_opacity(image) for image in (first, second)]
        is_different &= (alphas[0] > 0) | (alphas[1] > 0)
        transparency = np.abs(alphas[0] - alphas[1]) * _max_value(first)
        is_different |= transparency > tolerance
        difference = np.maximum(np.where(is_different, difference, 0), transparency)
    excluded = _excluded_mask(first, second, ignore)
    if excluded is not None:
        is_different &= ~excluded
    return is_different, difference, excluded


def compare_files(
    before: File, after: File, name: str = "", ignore: Ignore | None = None, tolerance: float = 0.0
) -> ImageComparison:
    """Compare all images of two files.

    Args:
        before: Path or contents.
        after: Path or contents.
        name: Name of the pair, for messages.
        ignore: Function from height and width to a mask of pixels to leave out.
        tolerance: Largest difference at which two values count as equal, in the unit of the files.

    Raises:
        DataError: A file cannot be read.
    """
    results: list[ImageComparison] = []
    pages, unmatched = 0, 0
    for first, second in zip_longest(decode_pages(before, name), decode_pages(after, name)):
        pages += 1
        if first is None or second is None:
            unmatched += first.values[0].size if first is not None else second.values[0].size
        else:
            results.append(compare(first, second, ignore, tolerance))
    subject = results[0].subject + (f" in {pages} images" if pages > 1 else "")
    return ImageComparison(
        pixels=sum(result.pixels for result in results) + unmatched,
        largest=max(result.largest for result in results),
        total=sum(result.total for result in results) + unmatched,
        missing=sum(result.missing for result in results),
        subject=subject,
    )


def _subject(image: RawImage) -> str:
    count = len(image.values)
    opacity = " and opacity" if image.alpha is not None else ""
    return f"{count} band{'s' * (count > 1)} of {image.bits} bits{opacity}"


def _in_srgb(image: RawImage) -> RawImage:
    if image.values.dtype != np.uint8 or image.space:
        return image
    return replace(image, values=to_srgb(image.values, image.profile))


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


def _excluded_mask(first: RawImage, second: RawImage, ignore: Ignore | None) -> np.ndarray | None:
    """Build the mask ``(H, W)`` of pixels that are ignored or missing in any band of either image; None if empty."""
    masks = [mask.any(0) for mask in (first.missing_mask, second.missing_mask) if mask is not None]
    ignored = None if ignore is None else ignore(first.size)
    masks += [] if ignored is None else [ignored]
    return np.logical_or.reduce(masks) if masks else None
