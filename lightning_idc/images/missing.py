"""Masks of missing pixels, True where data is missing: from nodata values as GDAL reads them, and from NaN."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from lightning_idc.utils.errors import DataError

_ULP = 4 * np.finfo(np.float32).eps  # GDAL's tolerance, since writers print nodata with too few digits


def colour_mask(values: np.ndarray, colour: Sequence[float | None]) -> np.ndarray | None:
    """Build the mask ``(1, H, W)`` of pixels of a colour; None if it has not one value for each band.

    Args:
        values: Stored values.
        colour: Value of each band; None where no pixel can have it.
    """
    if len(colour) != len(values) or None in colour:
        return None
    return np.asarray(np.logical_and.reduce([values[band] == value for band, value in enumerate(colour)]))[None]


def parse_nodata(text: str, dtype: np.dtype, owner: str) -> int | float | None:
    """Parse the text of a nodata value in a data type; None if it is empty or not representable in that type.

    Args:
        text: Text of the value.
        dtype: Data type of the image.
        owner: Owner of the text, for the message.

    Raises:
        DataError: The text is not a number.
    """
    text = text.strip(" \0\t\r\n").replace(",", ".")
    if not text:
        return None
    try:
        value = int(text) if text.lstrip("+-").isdigit() else float(text)
    except ValueError:
        raise DataError(f"{owner} is {text[:40]!r}; expected a number (gdal_edit.py -unsetnodata removes it)") from None
    if dtype.kind == "f":
        return None if math.isnan(value) else float(value)
    if dtype.kind not in "iu" or not math.isfinite(value) or value != int(value):
        return None
    limits = np.iinfo(dtype)
    return int(value) if limits.min <= value <= limits.max else None


def equal_to(values: np.ndarray, nodata: float) -> np.ndarray:
    """Build the mask of values that equal a nodata value in the precision of float32."""
    if values.dtype.kind != "f":
        return np.asarray(values == nodata)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(np.isclose(values, values.dtype.type(nodata), rtol=_ULP, atol=0))


def nodata_mask(values: np.ndarray, nodata: float | None) -> np.ndarray | None:
    """Build the mask of values that mark missing data in all bands ``(C, H, W)``."""
    if nodata is None:
        return None
    missing = equal_to(values, nodata)
    if values.dtype == np.uint8:  # like GDAL, require the value in all bands of an 8-bit colour
        missing = np.asarray(missing.all(0, keepdims=True))
    return missing


def union(*masks: np.ndarray | None) -> np.ndarray | None:
    """Compute the union of masks; None if it is empty."""
    union: np.ndarray | None = None
    for mask in masks:
        if mask is not None:
            union = mask if union is None else union | mask
    return union if union is not None and union.any() else None


def not_finite(values: np.ndarray) -> np.ndarray | None:
    """Build the mask of NaN and infinite values; None if there are none."""
    if values.dtype.kind != "f":
        return None
    missing = ~np.isfinite(values)
    return missing if missing.any() else None


def separate_opacity(
    values: np.ndarray, band: int, missing: np.ndarray | None
) -> tuple[np.ndarray | None, np.ndarray, np.ndarray | None]:
    """Split values ``(C, H, W)`` into opacity, the other bands and their missing pixels.

    An opacity that further bands follow stays among the values, so that their indices are those of the file, and its
    transparent pixels are missing.
    """
    if band < len(values) - 1:
        return None, values, union(missing, values[band : band + 1] == 0)
    return values[-1], values[:-1], missing if missing is None or len(missing) == 1 else missing[:-1]
