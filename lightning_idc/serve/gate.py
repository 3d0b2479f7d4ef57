"""Gate: decides whether the files of a pair differ, by their stored values, a tolerance and the noise of captures."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from lightning_idc.images.compare import Align, Ignore, ImageComparison, compare_files
from lightning_idc.images.decode import decode
from lightning_idc.images.raw import RawImage, max_alpha
from lightning_idc.images.to_uint8 import to_uint8
from lightning_idc.images.tolerance import Tolerance
from lightning_idc.rules.detection import boxes_of
from lightning_idc.rules.noise import noise_of
from lightning_idc.serve.pairs import FilePair
from lightning_idc.utils.bounds import check_fields


@dataclass(frozen=True, slots=True)
class Verdict:
    """Decision about one pair.

    Args:
        comparison: what was compared, and how much differs.
        changed: whether the pair differs by more than the tolerance and the noise.
        noise: noise that explains all differences beyond the tolerance; None if it was not looked for, or if they are
            more than noise.
    """

    comparison: ImageComparison
    changed: bool
    noise: str | None = None

    @property
    def is_described(self) -> bool:
        """Whether a captioner describes the pair: it is changed, and both files have the image that differs."""
        return self.changed and self.comparison.is_in_both

    @property
    def page(self) -> int | None:
        """Index of the first differing image that both files have; None for files with one image."""
        counts = self.comparison.counts
        return None if counts == (1, 1) else min(self.comparison.page or 0, min(counts) - 1)

    @property
    def canvas(self) -> tuple[int, int] | None:
        """Width and height of the canvas of both images, in whose pixels the boxes are; None if nothing differs."""
        mask = self.comparison.mask
        return None if mask is None else (mask.shape[1], mask.shape[0])

    def boxes(self) -> list[list[int]]:
        """Boxes x1 y1 x2 y2 around groups of differing pixels, the largest group first."""
        return [] if self.comparison.mask is None else boxes_of(self.comparison.mask)

    def as_sentence(self) -> str:
        """A sentence about the differing pixels, for pairs in which a description names no change."""
        comparison = self.comparison
        before, after = (f"{width}x{height}" for height, width in comparison.sizes)
        if comparison.counts[0] != comparison.counts[1]:
            return f"The file has {comparison.counts[1]} images instead of {comparison.counts[0]}."
        if before != after:
            return f"The image has {after} instead of {before} pixels."
        if comparison.opacity_only:
            return f"{comparison.pixels:,} pixels changed in opacity."
        where = f" of image {comparison.page + 1}" if comparison.page and comparison.counts[0] > 1 else ""
        return f"{comparison.pixels:,} pixels{where} changed."


LOSSLESS = frozenset({"PNG", "BMP", "GIF", "PPM", "TIFF"})
"""Formats that store all values of an image; a TIFF file with JPEG inside counts as one, and its noise as a change."""


@dataclass(frozen=True, slots=True)
class Gate:
    """Decides which pairs are changed.

    Args:
        tolerance: differences that do not count.
        align: see :func:`~lightning_idc.images.compare.compare`.
        noise: whether pairs whose differences are noise of the capture count as unchanged (``ignore``; with
            ``lenient`` also what may as well be a change) or as changed (``count``); see
            :mod:`lightning_idc.rules.noise`.
    """

    tolerance: Tolerance = field(default_factory=Tolerance)
    align: Align = "top-left"
    noise: Literal["ignore", "lenient", "count"] = "ignore"

    def __post_init__(self) -> None:
        check_fields(self)

    def check(self, pair: FilePair, ignore: Ignore | None = None) -> Verdict:
        """Compare both files of a pair.

        Args:
            pair: pair with both files.
            ignore: see :func:`~lightning_idc.images.compare.compare`.

        Raises:
            DataError: a file cannot be read.
        """
        assert pair.before is not None and pair.after is not None
        comparison = compare_files(pair.before, pair.after, pair.id, ignore, self.tolerance, self.align)
        if self.tolerance.allows(comparison.pixels, comparison.total):
            return Verdict(replace(comparison, mask=None), changed=False)
        noise = self._noise(pair, comparison, ignore) if self.noise != "count" else None
        return Verdict(comparison, changed=noise is None, noise=noise)

    def _noise(self, pair: FilePair, comparison: ImageComparison, ignore: Ignore | None) -> str | None:
        """Noise that explains the differences of two screenshots: grey or RGB images of 8 bits and of equal opacity."""
        if comparison.sizes[0] != comparison.sizes[1] or comparison.counts != (1, 1):
            return None
        assert pair.before is not None and pair.after is not None
        raws = [decode(file, pair.id) for file in (pair.before, pair.after)]
        if not all(_is_screenshot(raw) for raw in raws) or not np.array_equal(_alpha(raws[0]), _alpha(raws[1])):
            return None
        before, after = to_uint8(raws, name=pair.id)
        ignored = None if ignore is None else ignore(raws[0].size)
        after = after if ignored is None else np.where(ignored, before, after)
        lenient = self.noise == "lenient"
        return noise_of(before, after, lenient, lossless=not lenient and {raw.format for raw in raws} <= LOSSLESS)


def _is_screenshot(raw: RawImage) -> bool:
    return raw.values.dtype == np.uint8 and len(raw.values) in (1, 3) and not raw.space and raw.missing_mask is None


def _alpha(raw: RawImage) -> np.ndarray:
    return np.full(raw.size, max_alpha(raw.values.dtype)) if raw.alpha is None else raw.alpha
