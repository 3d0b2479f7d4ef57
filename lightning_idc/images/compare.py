"""Count the pixels that differ between two images, by the values stored in their files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Literal

import numpy as np

from lightning_idc.images.decode import decode_pages
from lightning_idc.images.distance import differing, with_opacity
from lightning_idc.images.overlap import Overlap, overlap_of
from lightning_idc.images.raw import File, RawImage
from lightning_idc.images.srgb import to_srgb
from lightning_idc.images.tolerance import Tolerance, antialiased

Ignore = Callable[[tuple[int, int]], "np.ndarray | None"]
"""Function from (height, width) to a bool mask ``(H, W)`` of pixels to leave out; None leaves out nothing."""
Align = Literal["top-left", "register", "none"]
"""How images are laid over each other; see :func:`compare`."""
EXACT = Tolerance()


@dataclass(frozen=True, slots=True)
class ImageComparison:
    """Result of comparing two images.

    Args:
        pixels: Number of pixels that differ.
        largest: Greatest difference of a value, in the unit of the files.
        total: Number of pixels of all images of the file.
        missing: Number of pixels that were not compared: marked as missing in either file, ignored, or outside of one
            image after a registration.
        subject: Description of the compared values, such as ``3 bands of 8 bits``.
        antialiased: Number of differing pixels that are anti-aliased and do not count.
        shift: Pixels to the right and down by which the second image was moved back.
        sizes: Height and width of both images.
        opacity_only: Whether only the opacity differs.
        page: Index of the first image of the file that differs; None if none does.
        counts: Number of images of each file.
        mask: Differing pixels of that image, bool ``(H, W)``, of the canvas of both images; None if none differs.
    """

    pixels: int
    largest: float
    total: int
    missing: int
    subject: str
    antialiased: int = 0
    shift: tuple[int, int] = (0, 0)
    sizes: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))
    opacity_only: bool = False
    page: int | None = None
    counts: tuple[int, int] = (1, 1)
    mask: np.ndarray | None = field(default=None, compare=False, repr=False)

    @property
    def equal(self) -> bool:
        """Whether no pixel differs."""
        return not self.pixels

    @property
    def is_in_both(self) -> bool:
        """Whether both files have the first image that differs."""
        return self.page is None or self.page < min(self.counts)

    def __str__(self) -> str:
        details = [f"{self.pixels:,} of {self.total:,} pixels differ"]
        details[0] += f" by up to {self.largest:g}" if self.pixels and self.largest else ""
        details += [f"{self.antialiased:,} anti-aliased ones do not count"] if self.antialiased else []
        details += [f"{self.missing:,} not compared"] if self.missing else []
        details += [f"after a shift by {self.shift[0]}, {self.shift[1]}"] if any(self.shift) else []
        return f"{', '.join(details)} ({self.subject})"


def equal(first: RawImage, second: RawImage) -> bool:
    """Whether no pixel of two images differs."""
    return compare(first, second).equal


def compare(
    first: RawImage,
    second: RawImage,
    ignore: Ignore | None = None,
    tolerance: Tolerance = EXACT,
    align: Align = "none",
) -> ImageComparison:
    """Compare the stored values of two images: all bands and the opacity, before any value range is applied.

    Pixels that are fully transparent in both images are equal regardless of their colours. Values of different bit
    depths are compared as fractions of their maximum, a grey image as three equal bands, and colours of different
    profiles in sRGB.

    Args:
        first: First image, whose unit the result has.
        second: Second image.
        ignore: Function from height and width to a mask of pixels to leave out, in the aligned canvas.
        tolerance: Differences that do not count; ``pixels`` and ``share`` are applied by the caller.
        align: ``top-left`` compares what images of unequal sizes have in common, and the rest of the larger one
            differs; ``register`` estimates a shift of the whole image and compares what both show; with ``none`` all
            pixels of images of unequal sizes differ.
    """
    subject, sizes = _subject(first), (first.size, second.size)
    if first.profile != second.profile:
        first, second = _in_srgb(first), _in_srgb(second)
    same_model = (first.space, first.inverted) == (second.space, second.inverted)
    bands = {len(first.values), len(second.values)}
    if (align == "none" and sizes[0] != sizes[1]) or not same_model or (len(bands) > 1 and bands != {1, 3}):
        return _incomparable(first, second, subject)
    overlap = overlap_of(first, second, register=align == "register")
    first, second = overlap.first, overlap.second
    difference, is_different, opacity_differs = differing(first, second, tolerance)
    excluded = _missing_mask(first, second)
    num_antialiased = 0
    if not tolerance.antialiasing and is_different.any():
        smoothing = antialiased(with_opacity(first), with_opacity(second), is_different)
        is_different &= ~smoothing
        num_antialiased = int(smoothing.sum())
    mask, not_compared = _on_canvas(overlap, is_different, excluded, ignore)
    pixels = int(mask.sum())
    inside = mask[overlap.rows, overlap.columns]
    if sizes[0] != sizes[1]:
        subject = f"{_pixels(sizes[0])} against {_pixels(sizes[1])} pixels, {subject}"
    return ImageComparison(
        pixels=pixels,
        largest=float(difference[inside].max()) if inside.any() else 0.0,
        total=mask.size,
        missing=int(not_compared.sum()),
        subject=subject,
        antialiased=num_antialiased,
        shift=overlap.shift,
        sizes=sizes,
        opacity_only=pixels > 0 and bool(opacity_differs[inside].all()) and pixels == int(inside.sum()),
        page=0 if pixels else None,
        mask=mask if pixels else None,
    )


def compare_files(
    before: File,
    after: File,
    name: str = "",
    ignore: Ignore | None = None,
    tolerance: Tolerance = EXACT,
    align: Align = "none",
) -> ImageComparison:
    """Compare all images of two files.

    Args:
        before: Path or contents.
        after: Path or contents.
        name: Name of the pair, for messages.
        ignore: See :func:`compare`.
        tolerance: See :func:`compare`.
        align: See :func:`compare`.

    Raises:
        DataError: A file cannot be read.
    """
    results: list[ImageComparison] = []
    counts, unmatched = [0, 0], 0
    for images in zip_longest(decode_pages(before, name), decode_pages(after, name)):
        counts = [count + (image is not None) for count, image in zip(counts, images, strict=True)]
        if images[0] is None or images[1] is None:
            unmatched += next(image.values[0].size for image in images if image is not None)
        else:
            result = compare(images[0], images[1], ignore, tolerance, align)
            # masks of further images of a long file would fill the memory
            results.append(replace(result, mask=None) if any(r.pixels for r in results) else result)
    pages = max(counts)
    page = next((index for index, result in enumerate(results) if result.pixels), None)
    first = results[page or 0]
    return replace(
        first,
        pixels=sum(result.pixels for result in results) + unmatched,
        largest=max(result.largest for result in results),
        total=sum(result.total for result in results) + unmatched,
        missing=sum(result.missing for result in results),
        antialiased=sum(result.antialiased for result in results),
        subject=first.subject + (f" in {pages} images" if pages > 1 else ""),
        opacity_only=not unmatched
        and all(result.opacity_only for result in results if result.pixels)
        and not first.equal,
        page=min(counts) if page is None and unmatched else page,
        counts=(counts[0], counts[1]),
    )


def _incomparable(first: RawImage, second: RawImage, subject: str) -> ImageComparison:
    """All pixels differ: the images have other sizes or other kinds of values."""
    sizes = (first.size, second.size)
    mismatch = f"{subject} against {_subject(second)}" if subject != _subject(second) else subject
    if sizes[0] != sizes[1]:
        mismatch = f"{_pixels(sizes[0])} against {_pixels(sizes[1])} pixels"
    canvas = np.ones((max(sizes[0][0], sizes[1][0]), max(sizes[0][1], sizes[1][1])), bool)
    return ImageComparison(
        pixels=canvas.size,
        largest=0.0,
        total=canvas.size,
        missing=0,
        subject=mismatch,
        sizes=sizes,
        page=0,
        mask=canvas,
    )


def _on_canvas(
    overlap: Overlap, is_different: np.ndarray, excluded: np.ndarray | None, ignore: Ignore | None
) -> tuple[np.ndarray, np.ndarray]:
    """Masks ``(H, W)`` of the pixels of the canvas that differ, and of those that are not compared."""
    not_compared = np.full(overlap.canvas, not overlap.border_differs)
    not_compared[overlap.rows, overlap.columns] = False if excluded is None else excluded
    mask = np.full(overlap.canvas, overlap.border_differs)
    mask[overlap.rows, overlap.columns] = is_different
    ignored = None if ignore is None else ignore(overlap.canvas)
    if ignored is not None:
        not_compared |= ignored
    return mask & ~not_compared, not_compared


def _subject(image: RawImage) -> str:
    count = len(image.values)
    opacity = " and opacity" if image.alpha is not None else ""
    return f"{count} band{'s' * (count > 1)} of {image.bits} bits{opacity}"


def _in_srgb(image: RawImage) -> RawImage:
    if image.values.dtype != np.uint8 or image.space:
        return image
    return replace(image, values=to_srgb(image.values, image.profile))


def _missing_mask(first: RawImage, second: RawImage) -> np.ndarray | None:
    """Build the mask ``(H, W)`` of pixels that are missing in any band of either image; None if empty."""
    masks = [mask.any(0) for mask in (first.missing_mask, second.missing_mask) if mask is not None]
    return np.logical_or.reduce(masks) if masks else None


def _pixels(size: tuple[int, int]) -> str:
    return f"{size[1]}x{size[0]}"
