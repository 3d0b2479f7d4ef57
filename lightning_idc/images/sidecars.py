"""Missing data that GDAL marks in files next to an image: ``IMAGE.msk`` and ``IMAGE.aux.xml``."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np

from lightning_idc.images.raw import File, RawImage, check_bytes, check_size, decoder_errors, import_codec
from lightning_idc.images.tiff import nodata_mask, parse_nodata, union
from lightning_idc.utils.errors import DataError

_NODATA = re.compile(rb"<NoDataValue(?:\s[^>]*)?>([^<]{1,64})</NoDataValue>")
_MAX_XML = 1 << 20  # statistics and histograms may be long


def with_sidecars(raw: RawImage, file: File, name: str) -> RawImage:
    """Add the missing data that files next to an image mark.

    GDAL writes ``.msk``, a TIFF with 0 for missing pixels, unless masks are inside the file, and ``.aux.xml`` with a
    nodata value for formats that cannot store one, such as JPEG 2000.

    Args:
        raw: Decoded image.
        file: Its path; contents have no such files.
        name: Name of the image, for messages.

    Raises:
        DataError: The mask is damaged or of another size, or the nodata value is not a number.
    """
    if isinstance(file, bytes):
        return raw
    mask, xml = (f"{os.fspath(file)}{ending}" for ending in (".msk", ".aux.xml"))
    if os.path.isfile(mask):
        raw.missing = union(raw.missing, _read_mask(mask, raw))
    if raw.nodata is None and os.path.isfile(xml):
        with Path(xml).open("rb") as opened:
            text = _NODATA.search(opened.read(_MAX_XML))
        if text is not None:
            raw.nodata = parse_nodata(text[1].decode(errors="replace"), raw.values.dtype, f"{name}: {xml!r}")
            raw.missing = union(raw.missing, nodata_mask(raw.values, raw.nodata))
    return raw


def _read_mask(path: str, raw: RawImage) -> np.ndarray:
    """Read the mask ``(1 or C, H, W)`` of an image, True for missing pixels."""
    tifffile = import_codec("tifffile", repr(path), "the mask of an image")
    with decoder_errors(repr(path)), tifffile.TiffFile(path) as opened:
        page = opened.pages.first
        check_size((page.imagewidth, page.imagelength), repr(path))
        check_bytes(page.nbytes, repr(path))
        values = page.asarray()
    if values.ndim == 3:  # a mask per band
        values = values.transpose([page.axes.index(axis) for axis in "SYX"])
    hidden = np.asarray(values.reshape(-1, *values.shape[-2:]) == 0)
    if hidden.shape[1:] != raw.size or len(hidden) not in (1, len(raw.values)):
        raise DataError(
            f"{path!r} has the shape {hidden.shape}; expected a mask of the image, {(1, *raw.size)}: remove it, or "
            "write it again"
        )
    return hidden
