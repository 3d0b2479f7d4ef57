"""Map stored values to the 8 bits that captioners read, in the same way for all images of a pair.

Values that do not fit in 8 bits raise an error unless the options define the mapping. Missing pixels do not count for
the value range, and a pixel that is missing in one image of a pair is missing in both, since its change is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from lightning_idc.images.options import PLAIN, VALUE_RANGE_FORMS, ImageOptions
from lightning_idc.images.raw import RawImage, max_alpha
from lightning_idc.images.srgb import to_srgb
from lightning_idc.utils.errors import DataError

_ROWS_AT_ONCE = 256  # rows scaled at a time, to avoid a float copy of the image


def to_uint8(raws: Sequence[RawImage], options: ImageOptions = PLAIN, name: str = "the image") -> list[np.ndarray]:
    """Map images to uint8 ``(C, H, W)`` with one value range: grey as three equal channels, opacity over white.

    Args:
        raws: One image, or both of a pair.
        options: Bands, value range and missing data.
        name: Name of the images, for messages.

    Raises:
        DataError: An image needs an option to be mapped to 8 bits.
    """
    images = [_select_bands(raw, options, name) for raw in raws]
    limits = value_range(images, options, name)
    missing = _missing_in_any(images)
    fills = [image.fill_value for image in images if image.fill_value is not None]
    fill_value = options.fill_nan if options.fill_nan is not None else fills[0] if fills else None
    return [
        _map_to_uint8(image, limits=limits, missing=missing, fill_value=fill_value, options=options) for image in images
    ]


def _select_bands(raw: RawImage, options: ImageOptions, name: str) -> RawImage:
    """Select the bands of an image according to the options."""
    if raw.pages > 1 and options.page is None:
        raise DataError(
            f"{name} holds {raw.pages} images (pages, frames or slices); choose one with page: 0 to {raw.pages - 1}"
        )
    if raw.space:
        raw = replace(raw, values=to_srgb(raw.values, raw.profile, raw.space), space="", profile=None)
    count = len(raw.values) + (raw.alpha is not None)
    # all options that a first reading needs, in one message
    ranged = raw.values.dtype == np.uint8 or options.value_range is not None
    also = "" if ranged else f"; and map the {raw.values.dtype} values to 8 bits with value_range: {VALUE_RANGE_FORMS}"
    if options.bands is not None:
        bands = list(range(count)) if options.bands == "all" else [int(band) for band in options.bands]
        out_of_range = [band for band in bands if band >= count]
        if out_of_range:
            raise DataError(f"{name} has {count} bands, 0 to {count - 1}; there is no band {out_of_range[0]}")
        # an opacity channel that is read as a band does not mask pixels
        missing = raw.missing if raw.alpha is not None and count - 1 in bands else raw.missing_mask
        if missing is not None and len(missing) > 1:
            missing = np.concatenate([missing, np.zeros_like(missing[:1])])[bands]
        values = raw.values if raw.alpha is None else np.concatenate([raw.values, raw.alpha[None]])
        values = values if options.bands == "all" else values[bands]
        raw = replace(raw, values=values, missing=missing, alpha=None, profile=None)
        _check_missing(raw, options, name)
        return raw
    if raw.format == "TIFF" and raw.alpha is not None:
        if not raw.alpha_is_mask:
            raise DataError(
                f"{name} has {count} bands, of which band {count - 1} is marked as opacity, though such files often "
                f"hold near infrared there; choose with bands: {list(range(min(3, count - 1)))}, or bands: all{also}"
            )
        raw = replace(raw, missing=raw.missing_mask, alpha=None)
    _check_missing(raw, options, name)
    if len(raw.values) not in (1, 3):
        raise DataError(
            f"{name} has {count} bands; expected 1 or 3. Choose with bands, for example "
            f"{[2, 1, 0] if count > 2 else [0]} (indices from 0), or bands: all{also}"
        )
    return raw


def _check_missing(image: RawImage, options: ImageOptions, name: str) -> None:
    if image.missing is None or not image.missing.any() or options.fill_nan is not None or image.fill_value is not None:
        return
    description = f"marked as missing{'' if image.nodata is None else f' ({image.nodata:g})'}"
    if image.values.dtype.kind == "f":
        finite = bool((image.missing & np.isfinite(image.values)).any())
        description = f"NaN, infinite or {description}" if finite else "NaN or infinite"
    raise DataError(
        f"{name}: {int(image.missing.sum()):,} of {image.missing.size:,} values are {description}; "
        "set fill_nan: NUMBER to replace them"
    )


def value_range(images: Sequence[RawImage], options: ImageOptions, name: str) -> tuple[float, float] | None:
    """Compute the values mapped to 0 and 255 in all images; None if the images are 8-bit and not rescaled."""
    requested = options.value_range
    deep = [image for image in images if image.values.dtype != np.uint8]
    if requested is None and not deep:
        return None
    valid = [values for values in map(_valid_values, images if requested is not None else deep[:1]) if values.size]
    limits: tuple[float, float] | None = None
    if isinstance(requested, tuple):
        limits = requested
    elif isinstance(requested, Mapping) and "center" in requested:
        limits = requested["center"] - requested["width"] / 2, requested["center"] + requested["width"] / 2
    if not valid:
        if limits is None:
            raise DataError(f"{name} has no valid values, only missing data")
        return limits
    low, high = min(float(values.min()) for values in valid), max(float(values.max()) for values in valid)
    if requested is None:
        raise DataError(
            f"{name} holds {deep[0].values.dtype} values from {low:.6g} to {high:.6g}, which do not fit in 8 bits; "
            f"set the values mapped to 0 and 255 with value_range: {VALUE_RANGE_FORMS}"
        )
    if isinstance(requested, Mapping) and "percentile" in requested:
        start, end = np.percentile(np.concatenate([values.ravel() for values in valid]), requested["percentile"])
        return float(start), float(end)
    if limits is None:
        return low, high
    if high < limits[0] or low > limits[1]:
        raise DataError(
            f"{name}: all values, {low:.6g} to {high:.6g}, are outside the value_range {limits[0]:g} to {limits[1]:g}"
        )
    return limits


def _valid_values(image: RawImage) -> np.ndarray:
    """Select the values of pixels that are neither missing nor fully transparent."""
    hidden = image.missing
    if image.alpha is not None and not image.alpha.all():
        hidden = image.alpha[None] == 0 if hidden is None else hidden | (image.alpha == 0)
    return image.values if hidden is None else image.values[~np.broadcast_to(hidden, image.values.shape)]


def _missing_in_any(images: Sequence[RawImage]) -> np.ndarray | None:
    """Compute the union of the images' missing pixels; None if there are none, or if the images differ in shape."""
    masks = [image.missing for image in images if image.missing is not None]
    if not masks or len({image.values.shape for image in images}) > 1:
        return None
    union = masks[0]
    for mask in masks[1:]:
        union = union | mask
    return union


def _map_to_uint8(
    image: RawImage,
    limits: tuple[float, float] | None,
    missing: np.ndarray | None,
    fill_value: float | None,
    options: ImageOptions,
) -> np.ndarray:
    """Map the values ``(C, H, W)`` of one image to uint8, with C = 3 unless bands are chosen."""
    values = image.values if limits is None else scale(image.values, *limits)
    missing = image.missing if missing is None else missing
    if missing is not None and fill_value is not None:
        values = np.where(missing, scale(np.full((1, 1, 1), float(fill_value)), *(limits or (0, 255))), values)
    values = 255 - values if image.inverted else values
    if limits is None:
        values = to_srgb(values, image.profile)
    if options.bands is None and len(values) == 1:
        values = np.broadcast_to(values, (3, *values.shape[1:]))
    return values if image.alpha is None else _composite_on_white(values, image.alpha)


def scale(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Scale ``(C, H, W)`` so that ``low`` becomes 0 and ``high`` 255; round and clip."""
    width = high - low if high > low else np.inf

    def scaled(part: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore"):  # NaN is filled afterwards
            levels: np.ndarray = np.rint(((part.astype(np.float64) - low) / width * 255).clip(0, 255))
            finite: np.ndarray = np.nan_to_num(levels)
            return finite.astype(np.uint8)

    if values.dtype.kind in "iu" and values.dtype.itemsize <= 2:
        # a lookup table of all values is faster
        bits = np.dtype(f"u{values.dtype.itemsize}")
        table = scaled(np.arange(np.iinfo(bits).max + 1).astype(bits).view(values.dtype))
        levels: np.ndarray = table[np.ascontiguousarray(values).view(bits)]
        return levels
    result = np.empty(values.shape, np.uint8)
    for start in range(0, values.shape[-2], _ROWS_AT_ONCE):
        result[..., start : start + _ROWS_AT_ONCE, :] = scaled(values[..., start : start + _ROWS_AT_ONCE, :])
    return result


def _composite_on_white(values: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """Composite colours ``(3, H, W)`` over white, with the rounding of Pillow."""
    if alpha.min() == max_alpha(alpha.dtype):
        return values
    levels = alpha if alpha.dtype == np.uint8 else scale(alpha[None], 0, max_alpha(alpha.dtype))[0]
    weight = levels.astype(np.uint16)
    white = 255 * (255 - weight) + 128
    result = np.empty(values.shape, np.uint8)
    for band, channel in enumerate(values):  # one band at a time is five times as fast
        mixed = channel * weight + white
        mixed += mixed >> 8  # this line and the next divide by 255
        result[band] = mixed >> 8
    return result
