"""compare: how many pixels of two images differ, by the values that their files store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np

from lightning_idc.images.decode import decode_pages
from lightning_idc.images.raw import File, RawImage, opaque
from lightning_idc.images.srgb import to_srgb
from lightning_idc.utils.bounds import NonNegativeFloat, NonNegativeInt, check_fields

Ignore = Callable[[tuple[int, int]], "np.ndarray | None"]
"""Function of height and width to a bool mask ``(H, W)`` of pixels that do not count."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Limits below which a difference does not count.

    Args:
        value: Greatest difference of a value that counts as equal, in the unit of the files.
        pixels: Number of pixels of a pair that may differ.
    """

    value: NonNegativeFloat = 0.0
    pixels: NonNegativeInt = 0

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class Comparison:
    """What differs between two images.

    Args:
        pixels: Number of pixels that differ.
        largest: Greatest difference of a value, in the unit of the files.
        total: Number of pixels of all images of the file.
        missing: Number of pixels that either file marks as missing, or that are ignored; they are not compared.
        subject: What was compared, such as ``3 bands of 8 bits``.
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
        left_out = f", {self.missing:,} not compared" if self.missing else ""
        by = f" by up to {self.largest:g}" if self.pixels and self.largest else ""
        return f"{self.pixels:,} of {self.total:,} pixels differ{by}{left_out} ({self.subject})"


def equal(first: RawImage, second: RawImage) -> bool:
    """Whether no pixel of two images differs."""
    return compare(first, second).equal


def compare(first: RawImage, second: RawImage, ignore: Ignore | None = None, tolerance: float = 0.0) -> Comparison:
    """Compare the stored values of two images: all bands and the opacity, before any range is applied.

    Pixels that are fully transparent in both images are equal whatever their colours. Values of another depth are
    compared as fractions of their maximum, a grey image as three equal bands, colours of different profiles in sRGB.

    Args:
        first: Image.
        second: Image.
        ignore: Function of height and width to pixels that do not count.
        tolerance: Greatest difference of a value that still counts as equal, in the unit of the files.
    """
    total = first.size[0] * first.size[1]
    subject = _subject(first)
    if first.profile != second.profile:
        first, second = _in_srgb(first), _in_srgb(second)
    a, b = first.values, second.values
    alike = (first.space, first.inverted) == (second.space, second.inverted)
    if first.size != second.size or not alike or (len(a) != len(b) and {len(a), len(b)} != {1, 3}):
        other = f"{subject} against {_subject(second)}" if subject != _subject(second) else subject
        if first.size != second.size:
            other = f"{first.size[1]}x{first.size[0]} against {second.size[1]}x{second.size[0]} pixels"
        return Comparison(max(total, second.size[0] * second.size[1]), 0.0, total, 0, other)
    difference = _difference(first, second)
    differs = difference > tolerance
    if first.alpha is not None or second.alpha is not None:
        alphas = [_fraction(image) for image in (first, second)]
        differs &= (alphas[0] > 0) | (alphas[1] > 0)
        transparency = np.abs(alphas[0] - alphas[1]) * _top(first)
        differs |= transparency > tolerance
        difference = np.maximum(np.where(differs, difference, 0), transparency)
    left_out = _left_out(first, second, ignore)
    if left_out is not None:
        differs &= ~left_out
    pixels = int(differs.sum())
    largest = float(difference[differs].max()) if pixels else 0.0
    return Comparison(pixels, largest, total, 0 if left_out is None else int(left_out.sum()), subject)


def compare_files(
    before: File, after: File, name: str = "", ignore: Ignore | None = None, tolerance: float = 0.0
) -> Comparison:
    """Compare all images of two files.

    Args:
        before: Path or contents.
        after: Path or contents.
        name: Owner of the images, for messages.
        ignore: Function of height and width to pixels that do not count.
        tolerance: Greatest difference of a value that still counts as equal.

    Raises:
        DataError: A file cannot be read.
    """
    results: list[Comparison] = []
    pages, blank = 0, 0
    for first, second in zip_longest(decode_pages(before, name), decode_pages(after, name)):
        pages += 1
        if first is None or second is None:
            blank += first.values[0].size if first is not None else second.values[0].size
        else:
            results.append(compare(first, second, ignore, tolerance))
    subject = results[0].subject + (f" in {pages} images" if pages > 1 else "")
    return Comparison(
        sum(result.pixels for result in results) + blank,
        max(result.largest for result in results),
        sum(result.total for result in results) + blank,
        sum(result.missing for result in results),
        subject,
    )


def _subject(image: RawImage) -> str:
    count = len(image.values)
    opacity = " and opacity" if image.alpha is not None else ""
    return f"{count} band{'s' * (count > 1)} of {image.bits} bits{opacity}"


def _in_srgb(image: RawImage) -> RawImage:
    if image.values.dtype != np.uint8 or image.space:
        return image
    return replace(image, values=to_srgb(image.values, image.profile))


def _top(image: RawImage) -> float:
    """Greatest value of the depth of an image."""
    return float(2**image.bits - 1) if image.values.dtype.kind == "u" else float(opaque(image.values.dtype))


def _difference(first: RawImage, second: RawImage) -> np.ndarray:
    """Greatest difference of the bands of each pixel, ``(H, W)``, in the unit of the first image."""
    a, b = first.values, second.values
    unsigned = a.dtype.kind == b.dtype.kind == "u"
    if unsigned and a.dtype == b.dtype and first.bits == second.bits:
        distance: np.ndarray = np.where(a > b, a - b, b - a).max(0)
        return distance
    # products of whole numbers are exact, where a fraction of them would be off by a rounding
    tops = (_top(first), _top(second)) if unsigned and first.bits != second.bits else (1.0, 1.0)
    with np.errstate(invalid="ignore"):  # what is not finite is missing, and left out
        scaled = np.abs(a.astype(np.float64) * tops[1] - b.astype(np.float64) * tops[0])
    difference: np.ndarray = (scaled / tops[1]).max(0)
    return difference


def _fraction(image: RawImage) -> np.ndarray:
    """Opacity from 0 to 1."""
    if image.alpha is None:
        return np.ones(image.size)
    return image.alpha.astype(np.float64) / opaque(image.alpha.dtype)


def _left_out(first: RawImage, second: RawImage, ignore: Ignore | None) -> np.ndarray | None:
    """Pixels that are missing in a band of either image, or ignored."""
    masks = [mask.any(0) for mask in (first.gaps, second.gaps) if mask is not None]
    ignored = None if ignore is None else ignore(first.size)
    masks += [] if ignored is None else [ignored]
    return np.logical_or.reduce(masks) if masks else None
