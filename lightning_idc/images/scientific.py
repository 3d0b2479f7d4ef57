"""GeoTIFF, TIFF of any number of bands, PNG of 16 bits and DICOM, through the packages of the extra ``scientific``."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from lightning_idc.images.raster import MAX_BYTES, Raster, refuse_huge
from lightning_idc.images.value_range import ImageOptions, choose_bands, choose_page, fill_missing
from lightning_idc.utils.errors import DataError, IDCError

_File = str | Path | IO[bytes]
_REDUCED_OR_MASK = 1 | 4


def _need(package: str, name: str, kind: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise DataError(
            f"{name} is {kind}; reading it needs {package}: pip install 'lightning_idc[scientific]'"
        ) from error


def read_tiff(file: _File, name: str, options: ImageOptions) -> Raster:
    """Read a TIFF of any number of bands, type of numbers and pages.

    Raises:
        DataError: it is damaged, too large, or the options do not say what of it is read.
    """
    tifffile = _need("tifffile", name, "a TIFF that Pillow does not read without loss")
    try:
        with tifffile.TiffFile(file) as tiff:
            pages = [page for page in _each_once(tiff.pages, name) if not int(page.subfiletype) & _REDUCED_OR_MASK]
            page = pages[choose_page(len(pages), options, name)]
            refuse_huge((page.imagewidth, page.imagelength), name)
            if page.nbytes > MAX_BYTES:
                raise DataError(f"{name} holds {page.nbytes:,} bytes of values; at most {MAX_BYTES:,} are read")
            values, axes, nodata = page.asarray(), page.axes, page.nodata if 42113 in page.tags else None
            opacity = [int(extra) in (1, 2) for extra in page.extrasamples]
            orientation = int(page.tags[274].value) if 274 in page.tags else 1
            inverted = int(page.photometric) == 0
    except IDCError:
        raise
    except Exception as error:  # tifffile and its codecs raise errors of many kinds on damaged files
        raise DataError(f"{name} is damaged or cannot be decoded ({error}); fetch it again or convert it") from error
    values = _channels_first(values, axes, name)
    alpha = len(values) - 1 if opacity and opacity[-1] else None
    # 8-bit values are kept as they are, those that mark missing data included
    nodata = None if values.dtype == np.uint8 else nodata
    values = _turned(values, orientation)
    if options.bands not in (None, "all"):  # what other bands lack is not read
        return Raster(fill_missing(choose_bands(values, options, name), nodata, options, name), inverted)
    return Raster(choose_bands(fill_missing(values, nodata, options, name), options, name, alpha), inverted)


def _each_once(pages: Iterable[Any], name: str) -> Iterator[Any]:
    """Pages of a TIFF; tifffile would follow a list whose end points to its start for ever."""
    seen = set()
    for page in pages:
        if page.offset in seen:
            raise DataError(f"{name} is damaged (its list of pages is a circle); fetch it again")
        seen.add(page.offset)
        yield page


def _channels_first(values: np.ndarray, axes: str, name: str) -> np.ndarray:
    """Array ``(C, H, W)`` of the machine's byte order."""
    if "".join(sorted(axes)) not in ("XY", "SXY") or values.ndim != len(axes):
        raise DataError(
            f"{name} has the axes {axes} and the shape {values.shape}; expected rows and columns, perhaps with bands"
        )
    if not values.size:
        raise DataError(f"{name} is damaged: its image has the shape {values.shape}, no pixel; fetch it again")
    order = [axes.index(axis) for axis in ("SYX" if "S" in axes else "YX")]
    values = values.transpose(order)
    values = values if "S" in axes else values[None]
    if values.dtype.kind == "b":
        return values.astype(np.uint8) * 255
    if values.dtype.kind not in "iuf":
        raise DataError(f"{name} holds {values.dtype} values; expected whole or real numbers (a magnitude, a phase)")
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def _turned(values: np.ndarray, orientation: int) -> np.ndarray:
    """Turned and mirrored as a TIFF's tag says."""
    if orientation in (5, 6, 7, 8):
        values = values.swapaxes(1, 2)
    if orientation in (2, 3, 6, 7):
        values = values[:, :, ::-1]
    if orientation in (3, 4, 7, 8):
        values = values[:, ::-1]
    return values


def read_deep_png(data: bytes, name: str) -> np.ndarray:
    """All 16 bits ``(C, H, W)`` of a colour PNG.

    Raises:
        DataError: it is damaged.
    """
    codecs = _need("imagecodecs", name, "a PNG with 16 bits per channel")
    try:
        return _channels_first(codecs.png_decode(data), "YXS", name)
    except codecs.PngError as error:
        raise DataError(f"{name} is damaged ({error}); fetch it again or leave this pair out") from error


def read_dicom(file: _File, name: str, options: ImageOptions) -> Raster:
    """Read an image of a DICOM file in its own unit, such as Hounsfield units.

    Raises:
        DataError: it holds no image, is damaged, too large, or the options do not say which frame is read.
    """
    pydicom = _need("pydicom", name, "a DICOM file")
    pixels = _need("pydicom.pixels", name, "a DICOM file")
    try:
        data = pydicom.dcmread(file)
        if "PixelData" not in data:
            raise DataError(f"{name} is a DICOM file without an image ({data.get('Modality', 'no modality')})")
        refuse_huge((int(data.Columns), int(data.Rows)), name)
        frame = choose_page(int(data.get("NumberOfFrames", 1) or 1), options, name)
        values = pixels.pixel_array(data, index=frame)
        kind = str(data.PhotometricInterpretation)
        if kind == "PALETTE COLOR":
            values = pixels.apply_color_lut(values, data)
        elif values.ndim == 2 and _rescaled(data):
            values = pixels.apply_modality_lut(values, data).astype(np.float32)
    except IDCError:
        raise
    except Exception as error:  # pydicom and its decoders raise errors of many kinds on damaged files
        raise DataError(f"{name} is damaged or cannot be decoded ({error}); fetch it again or convert it") from error
    values = _channels_first(values, "YXS" if values.ndim == 3 else "YX", name)
    values = fill_missing(values, None, options, name)
    return Raster(choose_bands(values, options, name), kind == "MONOCHROME1")


def _rescaled(data: Any) -> bool:
    """Whether stored numbers become values of a unit by more than taking them as they are."""
    line = float(data.get("RescaleSlope", 1)), float(data.get("RescaleIntercept", 0))
    return "ModalityLUTSequence" in data or line != (1.0, 0.0)
