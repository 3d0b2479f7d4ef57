"""ImageOptions: bands, page, value range and missing data of images that are mapped to 8 bits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from lightning_idc.utils.errors import ConfigError

ValueRange = tuple[float, float] | Literal["auto"] | Mapping[str, Any]
"""``[low, high]``, ``auto``, ``{percentile: [2, 98]}`` or ``{center: 40, width: 400}``."""
Bands = Sequence[int] | Literal["all"]
VALUE_RANGE_FORMS = "[LOW, HIGH], auto, {percentile: [2, 98]} or {center: 40, width: 400}"
"""Accepted forms of a value range, for messages."""


@dataclass(frozen=True, slots=True)
class ImageOptions:
    """Options for mapping the stored values of an image to 8 bits.

    Args:
        value_range: Values mapped to 0 and 255; values outside are clipped. Either a pair of numbers; ``auto``, the
            joint minimum and maximum of both images of a pair; ``{"percentile": [2, 98]}``, joint percentiles; or
            ``{"center": 40, "width": 400}``, a window. None keeps 8-bit images unchanged and rejects all others.
        bands: Channel indices from 0, in output order; ``all`` for all channels. None accepts grey and colour
            images and rejects other numbers of channels.
        page: Index from 0 of the image in a file with several images; None rejects such files.
        fill_nan: Value, in the unit of the file, that replaces NaN, infinity and missing data. None rejects images with
            missing data, unless the file defines an 8-bit colour for it.
        crop_bars: Whether to crop uniform borders that pad a pair to an aspect ratio other than that of the training
            images.

    Raises:
        ConfigError: An option has an invalid value.

    Example:
        >>> ImageOptions(value_range=(0, 4095)).value_range
        (0.0, 4095.0)
    """

    value_range: ValueRange | None = None
    bands: Bands | None = None
    page: int | None = None
    fill_nan: float | None = None
    crop_bars: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "value_range", _plain_range(self.value_range))
        if self.bands is not None and self.bands != "all":
            bands = self.bands
            if isinstance(bands, str) or not bands or any(type(band) is not int or band < 0 for band in bands):
                raise ConfigError(f"bands is {bands!r}; expected indices from 0, such as [3, 2, 1], or 'all'")
            object.__setattr__(self, "bands", tuple(bands))
        if self.page is not None and (type(self.page) is not int or self.page < 0):
            raise ConfigError(f"page is {self.page!r}; expected an index from 0")
        if self.fill_nan is not None and not _is_number(self.fill_nan):
            raise ConfigError(f"fill_nan is {self.fill_nan!r}; expected a finite number")
        if type(self.crop_bars) is not bool:
            raise ConfigError(f"crop_bars is {self.crop_bars!r}; expected true or false")

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain values for a checkpoint."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _plain_range(value: Any) -> Any:
    """Normalise a value range to plain floats."""
    if value is None or value == "auto":
        return value
    if isinstance(value, Mapping):
        if set(value) == {"percentile"}:
            limits = value["percentile"]
            limits = (
                (limits, 100 - limits)
                if _is_number(limits)
                else tuple(limits)
                if isinstance(limits, (list, tuple))
                else ()
            )
            if len(limits) == 2 and all(map(_is_number, limits)) and 0 <= limits[0] < limits[1] <= 100:
                return {"percentile": [float(limits[0]), float(limits[1])]}
        elif set(value) == {"center", "width"} and all(map(_is_number, value.values())) and value["width"] > 0:
            return {name: float(number) for name, number in value.items()}
    elif isinstance(value, (list, tuple)) and len(value) == 2 and all(map(_is_number, value)) and value[0] < value[1]:
        return (float(value[0]), float(value[1]))
    raise ConfigError(f"value_range is {value!r}; expected {VALUE_RANGE_FORMS}")


PLAIN = ImageOptions()
"""Default options: 8-bit grey and colour images, unchanged."""
