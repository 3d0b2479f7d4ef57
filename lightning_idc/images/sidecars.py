"""Missing data and scales that GDAL stores in files next to an image: ``IMAGE.msk`` and ``IMAGE.aux.xml``."""

from __future__ import annotations

import os
from xml.etree import ElementTree

import numpy as np

from lightning_idc.images.missing import colour_mask, equal_to, nodata_mask, parse_nodata, separate_opacity, union
from lightning_idc.images.raw import File, RawImage, check_bytes, check_size, decoder_errors, import_codec
from lightning_idc.images.scaling import apply_scaling, parse_scaling
from lightning_idc.utils.errors import DataError

_MAX_XML = 16 << 20  # statistics and histograms may be long


def sidecar_paths(file: str | os.PathLike[str]) -> tuple[str, str]:
    """Paths of the mask and of the metadata next to an image; neither file has to exist."""
    path = os.fspath(file)
    return f"{path}.msk", f"{path}.aux.xml"


def with_sidecars(raw: RawImage, file: File, name: str) -> RawImage:
    """Add the missing data and the scales that files next to an image hold.

    GDAL writes ``.msk``, a TIFF with 0 for missing pixels, unless masks are inside the file, and ``.aux.xml`` with a
    nodata value, scale and offset for formats that cannot store them, such as JPEG 2000.

    Args:
        raw: Decoded image.
        file: Its path; contents have no such files.
        name: Name of the image, for messages.

    Raises:
        DataError: The mask is damaged or of another size, or the nodata value is not a number.
    """
    if isinstance(file, bytes):
        return raw
    mask, xml = sidecar_paths(file)
    if os.path.isfile(mask):
        raw.missing = union(raw.missing, _read_mask(mask, raw))
    if os.path.isfile(xml):
        _apply_metadata(raw, _read_xml(xml), f"{name}: {xml!r}")
    return raw


def _read_xml(path: str) -> ElementTree.Element:
    if os.path.getsize(path) > _MAX_XML:
        raise DataError(f"{path!r} has more than {_MAX_XML:,} bytes; expected GDAL's metadata of an image")
    try:
        return ElementTree.parse(path).getroot()
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise DataError(f"{path!r} is damaged ({error}); expected GDAL's metadata of the image") from error


def _apply_metadata(raw: RawImage, root: ElementTree.Element, owner: str) -> None:
    """Apply the metadata of an image: nodata of bands, a colour, a band of opacity, scale and offset."""
    dtype, count = raw.values.dtype, len(raw.values)
    elements = [band for band in root.iter("PAMRasterBand") if band.get("band", "").isdecimal()]
    bands = {int(band.get("band", "")) - 1: band for band in elements}
    texts = {index: band.findtext("NoDataValue", "") for index, band in bands.items() if 0 <= index < count}
    nodata = {}
    if raw.nodata is None:
        nodata = {index: parse_nodata(text, dtype, owner) for index, text in texts.items() if text}
    values = [value for value in nodata.values() if value is not None]
    if len(values) == count and len(set(values)) == 1:
        raw.nodata = values[0]
        raw.missing = union(raw.missing, nodata_mask(raw.values, raw.nodata))
    elif values:
        missing = np.zeros(raw.values.shape, bool)
        for index, value in nodata.items():
            missing[index] = value is not None and equal_to(raw.values[index], value)
        raw.missing = union(raw.missing, missing)
    for item in root.iterfind("Metadata/MDI[@key='NODATA_VALUES']"):
        colour = [parse_nodata(text, dtype, owner) for text in (item.text or "").split()]
        raw.missing = union(raw.missing, colour_mask(raw.values, colour))
    opacity = [index for index, band in bands.items() if band.findtext("ColorInterp") == "Alpha" and 0 < index < count]
    if opacity and raw.alpha is None:
        raw.alpha, raw.values, raw.missing = separate_opacity(raw.values, opacity[0], raw.missing)
    scaling = parse_scaling(
        (
            (str(index), role, band.findtext(role.capitalize(), ""))
            for index, band in bands.items()
            for role in ("scale", "offset")
            if band.find(role.capitalize()) is not None
        ),
        owner,
    )
    apply_scaling(raw, scaling, opacity[0] if opacity else None, owner)


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
