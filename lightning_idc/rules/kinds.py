"""Kinds: classification of a changed region by its boundary, its colours and its gradients.

An object has edges along the boundary of the region and colours that differ from the surroundings. A region whose
boundary and colours stand out only in the after image was added; only in the before image, removed. A region with equal
gradients changed its colour. All other regions changed their content.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import ndimage

from lightning_idc.rules.colours import colour_of, histogram
from lightning_idc.rules.detection import Component
from lightning_idc.rules.windows import gradients, window_max, window_min

Kind = Literal["added", "removed", "moved", "recoloured", "text", "texture", "light"]
"""Kind of a change. Regions of the kind ``light`` are shadows and reflections and are not reported."""
MARGIN = 10
"""Width in pixels of the surroundings of a region."""
MIN_PRESENCE = 0.25
"""Minimum difference in presence between both images for an added or removed object."""
SAME_GRADIENTS = 0.5
"""Minimum correlation of the gradients for an unchanged structure."""
MAX_SHADOW_SLOPE = 0.16
"""Maximum slope of the difference for a shadow, as a fraction of its height per pixel."""


@dataclass(frozen=True, slots=True)
class Traits:
    """Measurements of one region.

    Args:
        presence: Contrast with the surroundings in the after image minus that in the before image.
        structure: Correlation of the gradients of both images, from -1 to 1.
        tint: Maximum difference of the mean colours without brightness, in grey levels.
        level: Maximum difference of the mean colours, in grey levels.
        softness: Maximum slope of the difference, as a fraction of its height.
        before: Colour histogram of the region in the before image.
        after: Colour histogram of the region in the after image.
        colours: Names of the colours of the region before and after; None if no colour dominates.
        is_text: Whether both images show thin strokes on the colour of the surroundings.
    """

    presence: float
    structure: float
    tint: float
    level: float
    softness: float
    before: np.ndarray
    after: np.ndarray
    colours: tuple[str | None, str | None]
    is_text: bool


def window_of(component: Component, size: tuple[int, int], margin: int) -> tuple[slice, slice]:
    """Return the rows and columns of a region with a margin, clipped to the image."""
    rows = slice(max(0, component.rows.start - margin), min(size[0], component.rows.stop + margin))
    return rows, slice(max(0, component.columns.start - margin), min(size[1], component.columns.stop + margin))


def mask_within(component: Component, window: tuple[slice, slice]) -> np.ndarray:
    """Return the mask of a region, padded to a larger window."""
    mask = np.zeros([part.stop - part.start for part in window], bool)
    row, column = component.rows.start - window[0].start, component.columns.start - window[1].start
    mask[row : row + component.mask.shape[0], column : column + component.mask.shape[1]] = component.mask
    return mask


def measure(before: np.ndarray, after: np.ndarray, component: Component) -> Traits:
    """Measure one region.

    Args:
        before: Float32 ``(3, H, W)``, aligned.
        after: Image of the same shape.
        component: Changed region.
    """
    window = window_of(component, before.shape[1:], MARGIN)
    first, second = before[:, window[0], window[1]], after[:, window[0], window[1]]
    mask = mask_within(component, window)
    filled = ndimage.binary_fill_holes(_eroded(_dilated(mask, 2), 2) | mask)
    wide, inner = _dilated(filled, 1), _eroded(filled, 1)
    inner = inner if inner.sum() >= 16 else filled
    surroundings = _dilated(wide, 6) & ~_dilated(wide, 1)
    surroundings = surroundings if surroundings.sum() >= 10 else ~wide
    surroundings = surroundings if surroundings.any() else np.ones_like(surroundings)
    slopes = [gradients(image.mean(0)) for image in (first, second)]
    magnitudes = [np.hypot(*slope) for slope in slopes]
    boundary = wide & ~_eroded(filled, 1)
    boundary = boundary if boundary.any() else wide  # a region that fills the image
    edges = [float(slope[boundary].mean()) for slope in magnitudes]
    correlation = sum(float((a[wide] * b[wide]).sum()) for a, b in zip(*slopes, strict=True))
    energy = [float((slope[wide] ** 2).sum()) for slope in magnitudes]
    inside, outside = ([image[:, part] for image in (first, second)] for part in (inner, surroundings))
    histograms = [histogram(pixels) for pixels in inside]
    contrasts = [
        1 - float(np.minimum(colours, histogram(pixels)).sum())
        for colours, pixels in zip(histograms, outside, strict=True)
    ]
    means = [pixels.mean(1) for pixels in inside]
    mean_change = means[1] - means[0]
    return Traits(
        presence=float(np.log((edges[1] + 2) / (edges[0] + 2))) + 1.5 * (contrasts[1] - contrasts[0]),
        structure=correlation / (np.sqrt(energy[0] * energy[1]) + 1e-6),
        tint=float(np.abs(mean_change - mean_change.mean()).max()),
        level=float(np.abs(mean_change).max()),
        softness=_softness(second - first, wide),
        before=histograms[0],
        after=histograms[1],
        colours=(colour_of(inside[0]), colour_of(inside[1])),
        is_text=_is_text(first, second, wide, surroundings, magnitudes),
    )


def classify(traits: Traits, exact: bool) -> Kind:
    """Classify a region that did not move, by its measurements.

    Args:
        traits: Measurements.
        exact: Whether unchanged pixels are equal; such a pair has no shadows.
    """
    if (
        not exact
        and traits.softness < MAX_SHADOW_SLOPE
        and traits.structure > 0.2
        and traits.tint < 0.35 * traits.level
    ):
        return "light"
    if traits.structure >= SAME_GRADIENTS:
        renamed = traits.colours[0] != traits.colours[1]
        return "recoloured" if traits.tint > 10 or (renamed and traits.level > 30) else "texture"
    if traits.is_text and abs(traits.presence) < 2 * MIN_PRESENCE:
        return "text"
    if abs(traits.presence) >= MIN_PRESENCE:
        return "added" if traits.presence > 0 else "removed"
    before, after = traits.colours
    return "recoloured" if before and after and before != after and traits.level > 40 else "texture"


def _softness(change: np.ndarray, mask: np.ndarray) -> float:
    grey = change.mean(0)
    height = float(np.quantile(np.abs(grey[mask]), 0.9))
    steep = np.hypot(*gradients(ndimage.uniform_filter(grey, 3)))[mask]
    return float(np.quantile(steep, 0.97)) / max(height, 1e-6)


def _is_text(
    before: np.ndarray, after: np.ndarray, mask: np.ndarray, ring: np.ndarray, steep: list[np.ndarray]
) -> bool:
    """Whether both images have thin strokes on a background of the colour of the surroundings."""
    for image, slope in zip((before, after), steep, strict=True):
        background = np.median(image[:, ring], 1)
        ink = (np.abs(image - background[:, None, None]).max(0) > 40) & mask
        fraction = float(ink.sum()) / max(int(mask.sum()), 1)
        thick = _eroded(ink, 4).sum()
        if not 0.05 < fraction < 0.75 or thick > 0.02 * ink.sum() or float(slope[mask].mean()) < 8:
            return False
    return True


def _dilated(mask: np.ndarray, radius: int) -> np.ndarray:
    return window_max(mask.view(np.uint8), radius).view(bool)


def _eroded(mask: np.ndarray, radius: int) -> np.ndarray:
    return window_min(mask.view(np.uint8), radius).view(bool)
