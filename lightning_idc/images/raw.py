"""RawImage: the values stored in an image file, with their metadata; helpers shared by all readers."""

from __future__ import annotations

import importlib
import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from lightning_idc.utils.errors import DataError, IDCError

MAX_PIXELS = 64_000_000
"""Largest image that is decoded, in pixels; reading 8-bit colour of this size takes about 1.1 GB in a worker."""
MAX_BYTES = 2**30
"""Largest size of the stored values of an image, in bytes."""
SCIENTIFIC = "pip install 'lightning_idc[scientific]'"
File = str | Path | bytes
"""Path of a file, or its contents."""


@dataclass(slots=True)
class RawImage:
    """Decoded image of a file, upright, before it is mapped to 8 bits.

    Args:
        values: Stored values ``(C, H, W)`` without opacity; bit depths below 8 are scaled to 8.
        bits: Significant bits of a value.
        format: Name of the file format.
        missing: Bool ``(C or 1, H, W)``, True where data is missing; None if no pixel is missing.
        nodata: Value that marks missing data; None if the file defines none.
        alpha: Opacity ``(H, W)`` in the type of the values; None for an image without opacity.
        profile: ICC profile of the colours.
        space: Colour space as a mode of Pillow, such as ``CMYK``; empty for grey, RGB and bands.
        inverted: Whether the largest value is black, as in some X-rays.
        page: Index of the image in its file.
        pages: Number of images in the file.
        is_scaled: Whether the values are stored values times a scale plus an offset, which the file has by band.
    """

    values: np.ndarray
    bits: int
    format: str
    missing: np.ndarray | None = None
    nodata: float | None = None
    alpha: np.ndarray | None = None
    profile: bytes | None = None
    space: str = ""
    inverted: bool = False
    page: int = 0
    pages: int = 1
    is_scaled: bool = False

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return int(self.values.shape[1]), int(self.values.shape[2])

    @property
    def fill_value(self) -> float | None:
        """Value used for missing pixels: the colour of 8-bit images, or the padding of DICOM; None for other images."""
        return self.nodata if self.values.dtype == np.uint8 or self.format == "DICOM" else None

    @property
    def missing_mask(self) -> np.ndarray | None:
        """Mask of missing pixels; in a TIFF, pixels that an opacity band masks count as missing, as in GDAL."""
        if self.format != "TIFF" or self.alpha is None or not self.alpha_is_mask:
            return self.missing
        hidden: np.ndarray = self.alpha[None] == 0
        return hidden if self.missing is None else self.missing | hidden

    @property
    def alpha_is_mask(self) -> bool:
        """Whether every pixel is either opaque or fully transparent."""
        assert self.alpha is not None
        return bool(((self.alpha == 0) | (self.alpha == max_alpha(self.alpha.dtype))).all())


Pages = tuple[int, Callable[[int], RawImage]]
"""Number of images in an opened file, and a function that decodes the image with a given index."""


def max_alpha(dtype: np.dtype) -> int:
    """Return the alpha value of an opaque pixel in a data type."""
    return int(np.iinfo(dtype).max) if dtype.kind in "iu" else 1


def check_size(size: tuple[int, int], name: str) -> None:
    """Check that an image has at least one pixel and at most :data:`MAX_PIXELS`."""
    width, height = size
    if width * height > MAX_PIXELS:
        raise DataError(_too_large(f"{name} claims {width} x {height} pixels"))
    if width * height <= 0:
        raise DataError(f"{name} is {width} x {height} pixels; expected at least one")


def check_bytes(count: int, name: str) -> None:
    """Check that the stored values of an image have at most :data:`MAX_BYTES`."""
    if count > MAX_BYTES:
        raise DataError(f"{name} has {count:,} bytes of values; expected at most {MAX_BYTES:,}")


def _too_large(claim: str) -> str:
    return f"{claim}; expected at most {MAX_PIXELS:,}. Downscale or tile it first"


@contextmanager
def decoder_errors(name: str) -> Iterator[None]:
    """Re-raise any error of a decoder as a one-line DataError that names the file.

    Pillow, tifffile, pydicom and their codecs raise many types of errors on damaged files.

    Args:
        name: Name of the image, for the message.

    Raises:
        DataError: A decoder failed.
    """
    try:
        yield
    except (IDCError, MemoryError):
        raise
    except Image.DecompressionBombError as error:
        pixels = int((re.findall(r"\d+", str(error)) or ["0"])[0])
        raise DataError(_too_large(f"{name} claims {pixels:,} pixels")) from None
    except Exception as error:
        cause = " ".join(str(error).split())
        raise DataError(f"{name} is damaged or cannot be decoded ({cause}); download it again or convert it") from error


def import_codec(package: str, name: str, kind: str) -> Any:
    """Import a decoder package of the extra ``scientific``.

    Args:
        package: Module to import.
        name: Name of the image, for the message.
        kind: Kind of image that needs the package.

    Raises:
        DataError: The package is not installed.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise DataError(f"{name} is {kind}; reading it needs {package}: {SCIENTIFIC}") from error


def stream_of(file: File) -> Any:
    """Return a path as it is, and contents as a stream: decoders accept both."""
    return io.BytesIO(file) if isinstance(file, bytes) else file


def contents_of(file: File) -> bytes:
    """Read all bytes of a file."""
    return file if isinstance(file, bytes) else Path(file).read_bytes()


def channels_first(values: np.ndarray, axes: str, name: str) -> np.ndarray:
    """Transpose an array to ``(C, H, W)`` and convert it to native byte order.

    Args:
        values: Decoded array.
        axes: Letter of each axis, S for bands.
        name: Name of the image, for messages.

    Raises:
        DataError: The axes are not those of one image, or the values are not real numbers.
    """
    if "".join(sorted(axes)) not in ("XY", "SXY") or values.ndim != len(axes):
        raise DataError(
            f"{name} has the axes {axes} and the shape {values.shape}; expected rows, columns and optionally bands"
        )
    if not values.size:
        raise DataError(f"{name} is damaged: its image has the shape {values.shape}; expected at least one pixel")
    values = values.transpose([axes.index(axis) for axis in ("SYX" if "S" in axes else "YX")])
    values = values if "S" in axes else values[None]
    if values.dtype.kind == "b":
        return values.astype(np.uint8) * 255
    if values.dtype.kind not in "iuf":
        raise DataError(f"{name} holds {values.dtype} values; expected integers or real numbers (a magnitude, a phase)")
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def scale_to_8_bits(values: np.ndarray, bits: int) -> np.ndarray:
    """Scale values of less than 8 bits so that the largest becomes 255, as PNG readers do."""
    if bits >= 8 or values.dtype.kind != "u":
        return values
    scaled: np.ndarray = np.rint(values.astype(np.float32) * (255 / ((1 << bits) - 1)))
    return scaled.clip(0, 255).astype(np.uint8)


def apply_orientation(values: np.ndarray, orientation: int) -> np.ndarray:
    """Rotate and mirror an array ``(..., H, W)`` according to an EXIF orientation."""
    if orientation in (5, 6, 7, 8):
        values = values.swapaxes(-1, -2)
    if orientation in (2, 3, 6, 7):
        values = values[..., ::-1]
    if orientation in (3, 4, 7, 8):
        values = values[..., ::-1, :]
    return values
