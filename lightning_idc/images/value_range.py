"""How stored values become the 8 bits that captioners read: value range, bands, page and missing values.

Nothing is guessed: what 8 bits cannot keep is refused by name until the user says how it is to be mapped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from lightning_idc.utils.errors import ConfigError, DataError

ValueRange = tuple[float, float] | Literal["auto"] | Mapping[str, Any]
"""``[low, high]``, ``auto``, ``{percentile: [2, 98]}`` or ``{center: 40, width: 400}``."""
Bands = Sequence[int] | Literal["all"]
RANGES = "[LOW, HIGH], auto, {percentile: [2, 98]} or {center: 40, width: 400}"
_ROWS = 256


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _checked_range(value: Any) -> Any:
    """The range with plain numbers in it.

    Raises:
        ConfigError: it has none of these forms.
    """
    wrong = ConfigError(f"value_range is {value!r}; expected {RANGES}")
    if value is None or value == "auto":
        return value
    if isinstance(value, Mapping):
        given = dict(value)
        if set(given) == {"percentile"}:
            ends = given["percentile"]
            ends = (ends, 100 - ends) if _number(ends) else tuple(ends) if isinstance(ends, (list, tuple)) else ()
            if len(ends) == 2 and all(map(_number, ends)) and 0 <= ends[0] < ends[1] <= 100:
                return {"percentile": [float(ends[0]), float(ends[1])]}
        elif set(given) == {"center", "width"} and all(map(_number, given.values())) and given["width"] > 0:
            return {"center": float(given["center"]), "width": float(given["width"])}
        raise wrong
    if isinstance(value, (list, tuple)) and len(value) == 2 and all(map(_number, value)) and value[0] < value[1]:
        return (float(value[0]), float(value[1]))
    raise wrong


@dataclass(frozen=True, slots=True)
class ImageOptions:
    """What of a file is read, and which of its values become 0 and 255.

    Args:
        value_range: values that become 0 and 255, further ones being cut off: a pair of numbers; ``auto`` for the least
            and the greatest of both images of a pair together; ``{"percentile": [2, 98]}`` of both together; or
            ``{"center": 40, "width": 400}``, a window. None reads 8-bit images as they are and refuses all others.
        bands: indices of the channels that are read, from 0, in this order; ``all`` for all of them. None reads grey
            and colour images and refuses other numbers of channels.
        page: index of the image in a file of several, from 0; None refuses such files.
        fill_nan: value, in the unit of the file, that takes the place of NaN, infinity and the file's own value for
            missing data; None refuses images that have any.

    Raises:
        ConfigError: an option is not one of these.

    Example:
        >>> ImageOptions(value_range=(0, 4095)).value_range
        (0.0, 4095.0)
    """

    value_range: ValueRange | None = None
    bands: Bands | None = None
    page: int | None = None
    fill_nan: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "value_range", _checked_range(self.value_range))
        if self.bands is not None and self.bands != "all":
            bands = self.bands
            if isinstance(bands, str) or not bands or any(type(band) is not int or band < 0 for band in bands):
                raise ConfigError(f"bands is {bands!r}; expected indices from 0, such as [3, 2, 1], or 'all'")
            object.__setattr__(self, "bands", tuple(bands))
        if self.page is not None and (type(self.page) is not int or self.page < 0):
            raise ConfigError(f"page is {self.page!r}; expected an index from 0")
        if self.fill_nan is not None and not math.isfinite(self.fill_nan):
            raise ConfigError(f"fill_nan is {self.fill_nan!r}; expected a finite number")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as a checkpoint keeps them."""
        bands = list(self.bands) if isinstance(self.bands, tuple) else self.bands
        value_range = list(self.value_range) if isinstance(self.value_range, tuple) else self.value_range
        return {"value_range": value_range, "bands": bands, "page": self.page, "fill_nan": self.fill_nan}


PLAIN = ImageOptions()
"""8-bit grey and colour images as they are."""


def bounds(options: ImageOptions, images: Sequence[np.ndarray], name: str) -> tuple[float, float] | None:
    """Values that become 0 and 255 in all of these images; None where they are 8-bit and stay as they are.

    Args:
        options: with the value range.
        images: arrays ``(C, H, W)`` that share one range: both sides of a pair.
        name: of the images, for the message.

    Raises:
        DataError: values are not 8-bit and no range is given, or all of them lie outside of it.
    """
    wanted = options.value_range
    if wanted is None:
        deep = next((image for image in images if image.dtype != np.uint8), None)
        if deep is None:
            return None
        raise DataError(
            f"{name} holds {deep.dtype} values from {deep.min():.6g} to {deep.max():.6g}, which 8 bits cannot keep; "
            f"say which become 0 and 255 with value_range: {RANGES}"
        )
    images = [image[:1] if image.strides[0] == 0 else image for image in images]  # grey is one channel seen three times
    least, greatest = min(float(image.min()) for image in images), max(float(image.max()) for image in images)
    if wanted == "auto":
        return least, greatest
    if isinstance(wanted, Mapping) and "percentile" in wanted:
        low, high = np.percentile(np.concatenate([image.ravel() for image in images]), wanted["percentile"])
        return float(low), float(high)
    if isinstance(wanted, Mapping):
        low, high = wanted["center"] - wanted["width"] / 2, wanted["center"] + wanted["width"] / 2
    else:
        assert isinstance(wanted, tuple)
        low, high = wanted
    if greatest < low or least > high:
        raise DataError(
            f"{name}: all values, {least:.6g} to {greatest:.6g}, lie outside of the value_range {low:g} to {high:g}"
        )
    return low, high


def to_uint8(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Scale an array ``(C, H, W)`` so that ``low`` becomes 0 and ``high`` 255, rounded, cut off beyond."""
    width = high - low if high > low else np.inf

    def scaled(part: np.ndarray) -> np.ndarray:
        shades: np.ndarray = np.rint(((part.astype(np.float64) - low) / width * 255).clip(0, 255)).astype(np.uint8)
        return shades

    if values.dtype.kind in "iu" and values.dtype.itemsize <= 2:
        # a table of all values: no pixel is ever held in more than its own bytes
        bits = np.dtype(f"u{values.dtype.itemsize}")
        table: np.ndarray = scaled(np.arange(np.iinfo(bits).max + 1).astype(bits).view(values.dtype))[values.view(bits)]
        return table
    result = np.empty(values.shape, np.uint8)
    for start in range(0, values.shape[-2], _ROWS):
        result[..., start : start + _ROWS, :] = scaled(values[..., start : start + _ROWS, :])
    return result


def fill_missing(values: np.ndarray, nodata: float | None, options: ImageOptions, name: str) -> np.ndarray:
    """Replace NaN, infinities and the file's value for missing data.

    Raises:
        DataError: there are some and it is not said what they become, or the type of the values cannot hold that.
    """
    missing = ~np.isfinite(values) if values.dtype.kind == "f" else np.zeros(values.shape, bool)
    if nodata is not None and not math.isnan(nodata):
        missing |= values == nodata
    count = int(missing.sum())
    if not count:
        return values
    if options.fill_nan is None:
        kind = "NaN or infinite" if nodata is None else f"NaN, infinite or marked as missing ({nodata:g})"
        raise DataError(
            f"{name}: {count:,} of {values.size:,} values are {kind}; say what takes their place with fill_nan: NUMBER"
        )
    if values.dtype.kind in "iu" and not np.iinfo(values.dtype).min <= options.fill_nan <= np.iinfo(values.dtype).max:
        raise DataError(f"{name}: fill_nan is {options.fill_nan:g}, which {values.dtype} cannot hold")
    filled = values.copy()
    filled[missing] = options.fill_nan
    return filled


def choose_bands(values: np.ndarray, options: ImageOptions, name: str, alpha: int | None = None) -> np.ndarray:
    """The bands that are read of an array ``(C, H, W)``.

    Args:
        values: all bands.
        options: with the bands.
        name: of the image, for the message.
        alpha: index of a band that the file marks as opacity; left out where it is opaque everywhere.

    Raises:
        DataError: the number of bands is not that of a grey or colour image, or one that is named is not there.
    """
    count = len(values)
    if options.bands == "all":
        return values
    if options.bands is not None:
        absent = [band for band in options.bands if isinstance(band, int) and band >= count]
        if absent:
            raise DataError(f"{name} has {count} bands, 0 to {count - 1}; there is no band {absent[0]}")
        return values[list(options.bands)]
    if alpha is not None:
        opaque = np.iinfo(values.dtype).max if values.dtype.kind in "iu" else 1
        if bool((values[alpha] == opaque).all()):
            values = np.delete(values, alpha, 0)
        else:
            raise DataError(
                f"{name} has {count} bands, of which band {alpha} is marked as opacity, though such files often hold "
                f"near infrared there; say which are read with bands: {list(range(min(3, count - 1)))}, or all of them "
                "with bands: all"
            )
    if len(values) == 1:
        return np.broadcast_to(values, (3, *values.shape[1:]))
    if len(values) != 3:
        raise DataError(
            f"{name} has {count} bands; expected 1 or 3. Say which are read with bands, for example "
            f"{[2, 1, 0] if count > 2 else [0]} (indices from 0), or all of them with bands: all"
        )
    return values


def choose_page(count: int, options: ImageOptions, name: str) -> int:
    """Index of the image that is read of a file that holds several.

    Raises:
        DataError: there are several and none is named, or the one that is named is not there.
    """
    if options.page is None:
        if count > 1:
            raise DataError(
                f"{name} holds {count} images (pages, frames or slices); say which is read with page: 0 to {count - 1}"
            )
        return 0
    if options.page >= count:
        raise DataError(f"{name} holds {count} image{'s' * (count > 1)}; there is no page {options.page}")
    return options.page
