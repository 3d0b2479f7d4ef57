"""measure: numbers that tell the thirteen kinds of changes of a page element apart, from the core of a pair."""

from __future__ import annotations

import numpy as np
from scipy import fft, ndimage

from lightning_idc.models.web.colors import most_frequent_color
from lightning_idc.models.web.core import Core, bounds, find_core
from lightning_idc.models.web.exchanged import compare_words
from lightning_idc.models.web.lines import MIN_INK, compare_lines, runs
from lightning_idc.models.web.moved import compare_moves
from lightning_idc.models.web.parts import compare_parts
from lightning_idc.models.web.words import Words, match_words
from lightning_idc.utils.boxes import PixelBox

MAX_SIDE = 640
"""Largest height and width of a core that is measured; larger ones are cut, the upper left part remains."""
SEARCH = 48
"""Largest distance in pixels at which the content of a core is searched for in the other image."""
MIN_SPREAD = 1e-3
"""Smallest deviation of colors, in levels, that is not rounding."""


def measure(before: np.ndarray, after: np.ndarray, core: Core, words: Words) -> dict[str, float]:
    """Measure the change of a pair; the same names for every pair, in the same order.

    Args:
        before: uint8 ``(3, H, W)``.
        after: image of the same shape.
        core: from :func:`~lightning_idc.models.web.core.find_core`.
        words: from :func:`~lightning_idc.models.web.words.match_words`.
    """
    height, width = before.shape[1:]
    union = _cut(core.union, height, width)
    crops = [image[:, union[1] : union[3], union[0] : union[2]].astype(np.float32) for image in (before, after)]
    changed = core.changed[union[1] : union[3], union[0] : union[2]]
    ground = most_frequent_color(np.concatenate([crop.reshape(3, -1) for crop in crops], 1)).astype(np.float32)
    inks = [np.abs(crop - ground[:, None, None]).max(0) > MIN_INK for crop in crops]
    values: dict[str, float] = {}
    values |= _geometry(core, height, width)
    values |= _pattern(changed, crops, ground)
    values |= _colors(changed, crops, inks, ground)
    values |= _motion(inks, changed)
    values |= _text(inks)
    values |= _surroundings(before, after, core)
    values |= compare_lines(before, after, core, ground)
    values |= compare_words(words)
    values |= compare_moves(before, after, core)
    values |= compare_parts(before, after, words)
    finite = np.nan_to_num(np.array([*values.values()], np.float64), posinf=99, neginf=-99)
    return dict(zip(values, finite.tolist(), strict=True))


def _names() -> tuple[str, ...]:
    """Names of all measures, from a pair of small images."""
    before = np.full((3, 8, 8), 255, np.uint8)
    after = before.copy()
    after[:, 3:5, 3:5] = 0
    core = find_core(before, after)
    assert core is not None
    return tuple(measure(before, after, core, match_words(before, after, core)))


def _cut(box: PixelBox, height: int, width: int) -> PixelBox:
    x1, y1, x2, y2 = max(0, box[0] - 2), max(0, box[1] - 2), min(width, box[2] + 2), min(height, box[3] + 2)
    return x1, y1, min(x2, x1 + MAX_SIDE), min(y2, y1 + MAX_SIDE)


def _log_ratio(new: float, old: float) -> float:
    return float(np.log((new + 1e-3) / (old + 1e-3))) if new or old else 0.0


def _geometry(core: Core, height: int, width: int) -> dict[str, float]:
    sizes = [(box[2] - box[0], box[3] - box[1]) for box in (core.before, core.after)]
    return {
        "shift_x": core.shift[0],
        "shift_y": core.shift[1],
        "tail_x": np.log1p(core.tail[0]),
        "tail_y": np.log1p(core.tail[1]),
        "width": np.log1p(sizes[0][0]),
        "height": np.log1p(sizes[0][1]),
        "width_ratio": _log_ratio(sizes[1][0], sizes[0][0]),
        "height_ratio": _log_ratio(sizes[1][1], sizes[0][1]),
        "grown_x": sizes[1][0] - sizes[0][0],
        "grown_y": sizes[1][1] - sizes[0][1],
        "relative_width": sizes[0][0] / width,
        "relative_height": sizes[0][1] / height,
        "shift_per_height": core.shift[1] / max(1, sizes[0][1]),
        "shift_per_width": core.shift[0] / max(1, sizes[0][0]),
        "to_bottom": float(core.before[3] >= height - 2),
    }


def _pattern(changed: np.ndarray, crops: list[np.ndarray], ground: np.ndarray) -> dict[str, float]:
    """How the changed pixels lie in their box: everywhere, along its border, in its corners."""
    if not changed.any():
        changed = np.ones_like(changed)
    x1, y1, x2, y2 = bounds(changed)
    mask = changed[y1:y2, x1:x2]
    total, (rows, columns) = float(mask.sum()), mask.shape
    inner = mask[4:-4, 4:-4].sum() if min(mask.shape) > 8 else 0
    side = max(1, min(24, rows // 3, columns // 3))
    corners = sum(
        float(mask[ys, xs].sum())
        for ys in (slice(None, side), slice(-side, None))
        for xs in (slice(None, side), slice(-side, None))
    )
    cover = [float(mask.any(axis).mean()) for axis in (0, 1)]
    ends = [float(line.mean()) for line in (mask[0], mask[-1], mask[:, 0], mask[:, -1])]
    pairs = np.stack([crop[:, y1:y2, x1:x2][:, mask] for crop in crops]).reshape(6, -1).astype(np.int64)
    keys = np.zeros(pairs.shape[1], np.int64)
    for channel in pairs:
        keys = keys * 256 + channel
    counts = np.unique(keys, return_counts=True)[1]
    is_ground = [np.abs(crop[:, changed] - ground[:, None]).max(0) <= MIN_INK / 2 for crop in crops]
    return {
        "pixels": np.log1p(total),
        "fill": total / mask.size,
        "ring": 1 - inner / total,
        "corners": corners / total,
        "cover_x": cover[0],
        "cover_y": cover[1],
        "line_top": ends[0],
        "line_bottom": ends[1],
        "line_left": ends[2],
        "line_right": ends[3],
        "pieces": np.log1p(ndimage.label(mask, np.ones((3, 3)))[1]),
        "top_pair": counts.max() / len(keys),
        "pair_kinds": np.log1p(len(counts)),
        "was_ground": is_ground[0].mean(),
        "is_ground": is_ground[1].mean(),
        "from_ground": (is_ground[0] & ~is_ground[1]).mean(),
        "to_ground": (~is_ground[0] & is_ground[1]).mean(),
    }


def _colors(
    changed: np.ndarray, crops: list[np.ndarray], inks: list[np.ndarray], ground: np.ndarray
) -> dict[str, float]:
    """Whether the colours of the changed pixels are a multiple of the old ones, as with another opacity or colour."""
    mask = changed if changed.any() else np.ones_like(changed)
    old, new = (crop[:, mask] - ground[:, None] for crop in crops)
    energy = float((old**2).sum()) + 1e-6
    alpha = float((old * new).sum()) / energy
    residual = float(((new - alpha * old) ** 2).sum()) / (float((new**2).sum()) + 1e-6)
    # one factor per channel: text of another colour
    factors = (old * new).sum(1) / ((old**2).sum(1) + 1e-6)
    by_channel = float(((new - factors[:, None] * old) ** 2).sum()) / (float((new**2).sum()) + 1e-6)
    # coverage of glyphs: distance from the ground relative to the largest, which a new colour does not change
    coverage = [np.sqrt((part**2).sum(0)) for part in (old, new)]
    varied = old.shape[1] > 2 and min(float(values.std()) for values in coverage) > MIN_SPREAD
    correlation = float(np.corrcoef(coverage[0], coverage[1])[0, 1]) if varied else 0.0
    inked = [crop[:, ink].mean(1) if ink.any() else ground for crop, ink in zip(crops, inks, strict=True)]
    extreme = [crop[:, ink] for crop, ink in zip(crops, inks, strict=True)]
    tops = [
        pixels[:, np.abs(pixels - ground[:, None]).max(0).argmax()] if pixels.size else ground for pixels in extreme
    ]
    saturation = [float(color.max() - color.min()) for color in tops]
    return {
        "alpha": np.clip(alpha, -3, 3),
        "alpha_residual": min(residual, 5),
        "channel_residual": min(by_channel, 5),
        "factor_spread": np.clip(factors, -5, 5).std(),
        "coverage_correlation": correlation,
        "color_distance": float(np.abs(inked[1] - inked[0]).max()) / 255,
        "top_distance": float(np.abs(tops[1] - tops[0]).max()) / 255,
        "contrast_ratio": _log_ratio(float(np.abs(tops[1] - ground).max()), float(np.abs(tops[0] - ground).max())),
        "saturation_change": (saturation[1] - saturation[0]) / 255,
        "mean_change": float((new - old).mean()) / 255,
        "change_spread": float((new - old).std()) / 255,
        "ground_level": float(ground.mean()) / 255,
    }


def _motion(inks: list[np.ndarray], changed: np.ndarray) -> dict[str, float]:
    """Where the content of the first image is in the second: the shift with the largest overlap of the marks."""
    first, second = (ink.astype(np.float32) for ink in inks)
    counts = [float(ink.sum()) for ink in inks]
    union = float((inks[0] | inks[1]).sum())
    still = float((inks[0] & inks[1]).sum()) / max(union, 1)
    best, dx, dy = still, 0, 0
    if min(counts) > 0:
        shape = [side + SEARCH for side in first.shape]
        surface = fft.irfft2(fft.rfft2(second, shape) * fft.rfft2(first, shape).conj(), s=shape)
        limits = [min(SEARCH, side - 1) for side in first.shape]
        rows, columns = (np.r_[0 : limit + 1, -limit:0] for limit in limits)
        part = surface[np.ix_(rows, columns)]
        row, column = np.unravel_index(int(part.argmax()), part.shape)
        dy, dx = int(rows[row]), int(columns[column])
        overlap = float(part[row, column])
        best = overlap / max(counts[0] + counts[1] - overlap, 1)
    changed_ink = [float((ink & changed).sum()) for ink in inks]
    return {
        "still": still,
        "moved_overlap": best,
        "gain": best - still,
        "dx": dx,
        "dy": dy,
        "is_shifted": float(bool(dx or dy)),
        "ink_ratio": _log_ratio(counts[1], counts[0]),
        "changed_ink_ratio": np.clip(_log_ratio(changed_ink[1], changed_ink[0]), -8, 8),
        "ink_before": np.log1p(counts[0]),
        "ink_after": np.log1p(counts[1]),
        "lost": float((inks[0] & ~inks[1]).sum()) / max(counts[0], 1),
        "new": float((inks[1] & ~inks[0]).sum()) / max(counts[1], 1),
    }


def _text(inks: list[np.ndarray]) -> dict[str, float]:
    """Lines, heights, gaps and strokes of the marks in both images, and how they changed."""
    stats = [_text_of(ink) for ink in inks]
    values = {f"{name}_ratio": _log_ratio(stats[1][name], stats[0][name]) for name in stats[0] if name != "lines"}
    values |= {
        f"{name}_change": stats[1][name] - stats[0][name]
        for name in ("lines", "gap", "pitch", "left", "right", "top", "bottom")
    }
    values |= {
        name: np.log1p(max(stats[0][name], 0)) for name in ("lines", "height", "letters", "letter_width", "stroke")
    }
    return values


def _text_of(ink: np.ndarray) -> dict[str, float]:
    names = ("lines", "height", "pitch", "letters", "letter_width", "letter_height", "gap", "stroke", "left", "right",
             "top", "bottom", "line_width")  # fmt: skip
    if not ink.any():
        return dict.fromkeys(names, 0.0)
    left, top, right, bottom = bounds(ink)
    lines = runs(np.asarray(ink.any(1)))
    labels, count = ndimage.label(ink, np.ones((3, 3)))
    boxes = ndimage.find_objects(labels)[:400]
    widths = [box[1].stop - box[1].start for box in boxes]
    heights = [box[0].stop - box[0].start for box in boxes]
    gaps = [gap for start, stop in lines[:12] for gap in _gaps(runs(np.asarray(ink[start:stop].any(0)))) if gap < 20]
    edge = ink & ~ndimage.binary_erosion(ink, np.ones((3, 3)))
    starts = [start for start, _ in lines]
    values = (
        len(lines),
        float(np.median([stop - start for start, stop in lines])),
        float(np.median(np.diff(starts))) if len(starts) > 1 else 0.0,
        count,
        float(np.median(widths)),
        float(np.median(heights)),
        float(np.mean(gaps)) if gaps else 0.0,
        float(ink.sum()) / max(1, int(edge.sum())),
        left,
        right,
        top,
        bottom,
        float(np.mean([np.ptp(np.flatnonzero(ink[start:stop].any(0))) for start, stop in lines])),
    )
    return dict(zip(names, map(float, values), strict=True))


def _gaps(words: np.ndarray) -> np.ndarray:
    """Lengths between runs ``(N, 2)``."""
    return words[1:, 0] - words[:-1, 1]


def _surroundings(before: np.ndarray, after: np.ndarray, core: Core) -> dict[str, float]:
    """Distance from the core of the first image to the next marks around it, in pixels up to 200."""
    x1, y1, x2, y2 = core.before
    height, width = before.shape[1:]
    values = {}
    strips = {
        "left": before[:, y1:y2, max(0, x1 - 200) : x1][:, :, ::-1],
        "right": before[:, y1:y2, x2 : min(width, x2 + 200)],
        "above": before[:, max(0, y1 - 200) : y1, x1:x2][:, ::-1].transpose(0, 2, 1),
        "below": before[:, y2 : min(height, y2 + 200), x1:x2].transpose(0, 2, 1),
    }
    for name, strip in strips.items():
        distance = 200.0
        if strip.size and strip.shape[2] > 1:
            start = strip[:, :, :1].astype(np.int16)
            differs = (np.abs(strip.astype(np.int16) - start).max(0) > MIN_INK / 2).any(0)
            distance = float(differs.argmax()) if differs.any() else float(min(200, strip.shape[2]))
        values[f"free_{name}"] = distance / 100
    return values


NAMES = _names()
"""Names of the measures, in their order."""
