"""describe_changes: rule-based description of the changes between two images, without a network.

1. The before image is warped to the view of the after image and matched in brightness
   (:mod:`~lightning_idc.rules.alignment`).
2. Regions that differ by more than the noise of the pair are found (:mod:`~lightning_idc.rules.detection`).
3. Each region is measured and classified (:mod:`~lightning_idc.rules.kinds`), and the old and new regions
   of a moved object are merged (:mod:`~lightning_idc.rules.movement`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from lightning_idc.images.options import ImageOptions
from lightning_idc.rules.alignment import Motion, estimate_motion, match_brightness, warp
from lightning_idc.rules.description import Description, Region
from lightning_idc.rules.detection import Component, compare_pair, find_regions
from lightning_idc.rules.kinds import Kind, Traits, classify, measure
from lightning_idc.rules.movement import refine_shift, same_content, shift_within
from lightning_idc.rules.parallax import camera_moved, realign
from lightning_idc.rules.reading import read_pair
from lightning_idc.utils.boxes import clip_box

MAX_REGIONS = 12
"""Maximum number of measured regions, the largest first; smaller ones count as changed content."""
MAX_THRESHOLD = 20.0
"""Largest median threshold of a pair that can be compared; JPEG of quality 75 has 9, another camera mostly above 40."""
SAME_CONTENT = 0.4
"""Minimum overlap of the colour histograms of the old and the new region of a moved object."""


def describe_changes(before: Any, after: Any, options: ImageOptions | None = None, resize: bool = False) -> Description:
    """Describe the changes between two images, by rules and without a network.

    Args:
        before: Path, contents of a file, Pillow image or uint8 ``(C, H, W)`` array or tensor.
        after: Image of the same kinds.
        options: Value range, bands and page. None maps the common range of both images to 8 bits if a file stores
            more than 8.
        resize: Whether the after image is scaled to the size of the before image.

    Warns:
        UserWarning: the images differ nearly everywhere, so that most changes are missed.

    Raises:
        DataError: An image cannot be read, or the two differ in size.

    Example:
        >>> before = np.full((3, 90, 90), 200, np.uint8)
        >>> after = before.copy()
        >>> after[:, 8:24, 60:80] = np.array([220, 20, 20])[:, None, None]
        >>> describe_changes(before, after).sentence
        'A red object was added in the upper right.'
    """
    first, second = read_pair(before, after, options, resize)
    size = (first.shape[2], first.shape[1])
    if np.array_equal(first, second):
        return Description((), size)
    aligned, target = first.astype(np.float32), second.astype(np.float32)
    valid = np.ones(aligned.shape[1:], bool)
    motion = estimate_motion(aligned.mean(0), target.mean(0))
    if motion is not None:
        aligned, valid = warp(aligned, motion)
    aligned, brightness = match_brightness(aligned, target, valid)
    values, threshold, radius = compare_pair(aligned, target, valid)  # values and threshold are (H, W)
    if (level := float(np.median(threshold))) > MAX_THRESHOLD:
        warnings.warn(
            "the images differ nearly everywhere, as with another camera or light, so most changes are missed: only "
            f"differences above {level:.0f} of 255 count",
            stacklevel=2,
        )
    components = find_regions(values, threshold, radius)
    if radius and camera_moved(values, threshold, target):
        measured = []
        for component in components[:MAX_REGIONS]:
            shifted, remaining = realign(aligned, target, component, threshold, radius)
            measured += [] if remaining is None else [(remaining, measure(shifted, target, remaining))]
        regions = _classified_regions(aligned, target, measured, exact=False, overlapping=False)
    else:
        measured = [(component, measure(aligned, target, component)) for component in components[:MAX_REGIONS]]
        regions = _classified_regions(aligned, target, measured, exact=not radius, overlapping=True)
        regions += [_region(component, None, "texture", None) for component in components[MAX_REGIONS:]]
    shift = None if motion is None else motion.shift
    regions.sort(key=lambda region: -region.area)
    return Description(tuple(_to_before_pixels(regions, motion, size)), size, shift, brightness)


def _classified_regions(
    before: np.ndarray, after: np.ndarray, measured: list[tuple[Component, Traits]], exact: bool, overlapping: bool
) -> list[Region]:
    """Classify regions; shadows are left out.

    Args:
        before: Float32 ``(3, H, W)``, aligned.
        after: Image of the same shape.
        measured: Changed regions with their measurements.
        exact: Whether unchanged pixels are equal.
        overlapping: Whether one region may contain the old and the new position of an object.
    """
    kinds = [classify(traits, exact) for _, traits in measured]
    regions, paired = _match_moved(before, after, measured, kinds)
    for index, ((component, traits), kind) in enumerate(zip(measured, kinds, strict=True)):
        if index in paired or kind == "light":
            continue
        shift = shift_within(before, after, component) if overlapping and kind != "recoloured" else None
        regions.append(_region(component, traits, "moved" if shift else kind, shift))
    return regions


def _match_moved(
    before: np.ndarray, after: np.ndarray, measured: list[tuple[Component, Traits]], kinds: list[Kind]
) -> tuple[list[Region], set[int]]:
    """Match removed with added regions of equal content; return moved objects and the indices of their regions."""
    candidates = []
    for start, (source, traits) in enumerate(measured):
        for end, (destination, destination_traits) in enumerate(measured):
            if kinds[start] == "removed" and kinds[end] == "added":
                score = same_content(traits, destination_traits, (source.area, destination.area))
                if score >= SAME_CONTENT:
                    candidates.append((score, start, end))
    regions: list[Region] = []
    paired: set[int] = set()
    for _, start, end in sorted(candidates, reverse=True):
        if paired & {start, end}:
            continue
        (source, traits), (destination, _) = measured[start], measured[end]
        guess = tuple(round(b - a) for a, b in zip(_centre(source), _centre(destination), strict=True))
        shift, _ = refine_shift(before, after, source, (guess[0], guess[1]))
        regions.append(_region(source, traits, "moved", shift))
        paired |= {start, end}
    return regions, paired


def _region(component: Component, traits: Traits | None, kind: Kind, shift: tuple[int, int] | None) -> Region:
    colours = (None, None) if traits is None else traits.colours
    return Region(_box(component), kind, score=component.score, shift=shift, colours=colours, area=component.area)


def _box(component: Component) -> tuple[int, int, int, int]:
    return component.columns.start, component.rows.start, component.columns.stop, component.rows.stop


def _centre(component: Component) -> tuple[float, float]:
    left, top, right, bottom = _box(component)
    return (left + right) / 2, (top + bottom) / 2


def _to_before_pixels(regions: Iterable[Region], motion: Motion | None, size: tuple[int, int]) -> Iterable[Region]:
    """Convert regions from the view of the after image to pixels of the before image; none outside its view."""
    for region in regions:
        box = clip_box(region.box if motion is None else motion.box_before(region.box), size)
        if box is not None:
            yield replace(region, box=box)
