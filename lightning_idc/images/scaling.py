"""Scale and offset of bands: GDAL's ``value = stored * scale + offset``, from a TIFF or from ``IMAGE.aux.xml``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from xml.etree import ElementTree

import numpy as np

from lightning_idc.images.missing import not_finite, union
from lightning_idc.images.raw import RawImage, check_bytes
from lightning_idc.utils.errors import DataError

Scaling = Mapping[int, tuple[float, float]]
"""Scale and offset by the index of the band."""


def scaling_of_tiff(metadata: str, owner: str) -> Scaling:
    """Read scales and offsets from the text of GDAL's metadata tag.

    Raises:
        DataError: the text is damaged, or a scale or offset is not a finite number.
    """
    if 'role="scale"' not in metadata and 'role="offset"' not in metadata:
        return {}
    try:
        root = ElementTree.fromstring(metadata.strip(" \0\t\r\n"))
    except ElementTree.ParseError as error:
        raise DataError(f"{owner} is damaged ({error}); expected GDAL's metadata of the image") from error
    return parse_scaling(
        ((item.get("sample", ""), item.get("role", ""), item.text or "") for item in root.iter("Item")), owner
    )


def parse_scaling(items: Iterable[tuple[str, str, str]], owner: str) -> Scaling:
    """Collect scales and offsets by band; those of bands that stay as they are are left out.

    Args:
        items: Index of the band, ``scale`` or ``offset`` (others are ignored), and the text of the number.
        owner: Owner of the texts, for the message.

    Raises:
        DataError: A scale or offset is not a finite number, or a scale is 0.
    """
    scales: dict[int, float] = {}
    offsets: dict[int, float] = {}
    for band, role, text in items:
        if role not in ("scale", "offset") or not band.isdecimal():
            continue
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number) or (role == "scale" and not number):
            raise DataError(f"{owner} has the {role} {text[:40]!r}; expected a finite number, and no scale of 0")
        (scales if role == "scale" else offsets)[int(band)] = number
    both = {band: (scales.get(band, 1.0), offsets.get(band, 0.0)) for band in scales.keys() | offsets.keys()}
    return {band: pair for band, pair in both.items() if pair != (1.0, 0.0)}


def apply_scaling(raw: RawImage, scaling: Scaling, opacity: int | None, name: str) -> None:
    """Replace stored values by physical ones, in float32; missing pixels stay missing.

    Args:
        raw: Decoded image, whose missing data is marked already.
        scaling: Scale and offset by band.
        opacity: Index of the opacity among the bands of the file; None without one.
        name: Name of the image, for messages.
    """
    bands = [band for band in range(len(raw.values) + 1) if band != opacity][: len(raw.values)]
    if raw.is_scaled or not scaling.keys() & set(bands):
        return
    check_bytes(4 * raw.values.size, name)
    values = raw.values.astype(np.float32)
    for index, band in enumerate(bands):
        scale, offset = scaling.get(band, (1.0, 0.0))
        with np.errstate(over="ignore"):
            values[index] = raw.values[index] * scale + offset
    raw.values, raw.bits, raw.is_scaled = values, 32, True
    raw.missing = union(raw.missing, not_finite(values))
