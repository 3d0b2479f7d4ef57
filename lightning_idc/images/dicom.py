"""Read DICOM files with pydicom, in the unit of the file, such as Hounsfield units."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from lightning_idc.images.missing import not_finite, union
from lightning_idc.images.raw import (
    File,
    Pages,
    RawImage,
    channels_first,
    check_size,
    decoder_errors,
    import_codec,
    scale_to_8_bits,
    stream_of,
)
from lightning_idc.utils.errors import DataError

_PIXELS = ("PixelData", "FloatPixelData", "DoubleFloatPixelData")


@contextmanager
def open_dicom(file: File, name: str) -> Iterator[Pages]:
    """Open a DICOM file and yield its number of frames with a function that decodes one."""
    pydicom = import_codec("pydicom", name, "a DICOM file")
    with decoder_errors(name):
        data = pydicom.dcmread(stream_of(file))
        if not any(keyword in data for keyword in _PIXELS):
            raise DataError(f"{name} is a DICOM file without an image ({data.get('Modality', 'no modality')})")
        check_size((int(data.Columns), int(data.Rows)), name)
        _check_bits(data, name)
        yield int(data.get("NumberOfFrames", 1) or 1), lambda frame: _read(data, frame, name)


def _read(data: Any, frame: int, name: str) -> RawImage:
    pixels = import_codec("pydicom.pixels", name, "a DICOM file")
    values = stored = pixels.pixel_array(data, index=frame)
    photometric = str(data.PhotometricInterpretation)
    if photometric == "PALETTE COLOR":
        values = pixels.apply_color_lut(stored, data)
    elif stored.ndim == 2 and _is_rescaled(rescale := _rescale_of(data, frame)):
        values = pixels.apply_modality_lut(stored, rescale).astype(np.float32)
    padding = _padding(data, stored)
    values = channels_first(values, "YXS" if values.ndim == 3 else "YX", name)
    if values.dtype == np.uint8:  # such as the one bit of a segmentation
        values = scale_to_8_bits(values, int(data.get("BitsStored", 8)))
    bits = values.dtype.itemsize * 8
    if photometric != "PALETTE COLOR" and stored.dtype.kind != "f":
        bits = max(8, int(data.get("BitsStored", 16)))
    return RawImage(
        values,
        bits,
        "DICOM",
        missing=union(padding, not_finite(values)),
        nodata=None if padding is None else float(values[padding].min()),
        profile=data.get("ICCProfile"),
        inverted=photometric == "MONOCHROME1",
    )


def _check_bits(data: Any, name: str) -> None:
    """Raise an error for values that do not end at the lowest bit, which pydicom reads as if they did."""
    stored, high = data.get("BitsStored"), data.get("HighBit")
    if stored is not None and high is not None and int(high) != int(stored) - 1:
        raise DataError(
            f"{name} stores its {stored} bits up to bit {high} (HighBit); expected {int(stored) - 1}: rewrite it, for "
            "example with dcmconv"
        )


def _rescale_of(data: Any, frame: int) -> Any:
    """Return the data set with the rescaling of a frame: in enhanced files a functional group, else the file itself."""
    groups = data.get("PerFrameFunctionalGroupsSequence") or []
    for group in [*groups[frame : frame + 1], *(data.get("SharedFunctionalGroupsSequence") or [])]:
        if "PixelValueTransformationSequence" in group:
            return group.PixelValueTransformationSequence[0]
    return data


def _is_rescaled(data: Any) -> bool:
    """Whether stored values must be rescaled to get values in the unit of the file."""
    slope_and_intercept = float(data.get("RescaleSlope", 1)), float(data.get("RescaleIntercept", 0))
    return "ModalityLUTSequence" in data or slope_and_intercept != (1.0, 0.0)


def _padding(data: Any, stored: np.ndarray) -> np.ndarray | None:
    """Build the mask ``(1, H, W)`` of padding, such as the corners around a round field of view; None without any."""
    first = data.get("PixelPaddingValue")
    if first is None or stored.ndim != 2 or stored.dtype.kind not in "iu":
        return None
    ends = np.array([int(first), int(data.get("PixelPaddingRangeLimit", first))])
    low, high = sorted(ends.astype(stored.dtype))  # some writers store negative values as unsigned
    missing = (stored >= low) & (stored <= high)
    return missing[None] if missing.any() else None
