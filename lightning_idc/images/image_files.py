"""Opening image files: formats by name, a limit of pixels before decoding, arrays with all that is stored."""

from __future__ import annotations

import importlib
import io
import re
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from lightning_idc.images.hidden_depth import deep_channels, is_plain_tiff, png_is_short, ppm_maximum
from lightning_idc.images.raster import Raster, refuse_huge, too_large
from lightning_idc.images.scientific import read_dicom, read_tiff
from lightning_idc.images.value_range import ImageOptions, choose_bands, choose_page, fill_missing
from lightning_idc.utils.errors import DataError, IDCError
from lightning_idc.utils.paths import describe_start

_PLUGINS = {
    **{name: f"{name.title()}ImagePlugin" for name in ("AVIF", "BMP", "GIF", "JPEG", "PNG", "PPM", "QOI", "TIFF")},
    **{"JPEG2000": "Jpeg2KImagePlugin", "WEBP": "WebPImagePlugin"},
}
FORMATS = tuple(sorted(_PLUGINS))
"""What Pillow is asked to try: formats with a signature, none of which starts a program or decodes while it opens."""
_NAMES = "apng avif bmp dcm dicom gif j2k jfif jp2 jpeg jpg pbm pgm png pnm ppm qoi tif tiff webp"
ENDINGS = frozenset(f".{name}" for name in _NAMES.split())
"""Names of files that :func:`read_raster` reads, DICOM with the extra ``scientific``."""
_OF_PILLOW = (
    *(OSError, SyntaxError, ValueError, EOFError, OverflowError, TypeError, LookupError, AttributeError),
    *(struct.error, zlib.error),
)
"""What Pillow raises on damaged files."""
_START = 4096
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_ORIENTATION, _SIDEWAYS = 0x0112, (5, 6, 7, 8)  # EXIF's tag, and those of its values that swap the sides
_REDUCED, _MASK = 1, 4  # bits of TIFF's NewSubfileType


class NotAnImageError(DataError):
    """None of the formats that are read."""


def read_raster(file: str | Path | bytes, name: str, options: ImageOptions) -> Raster:
    """Read an image with the bands and the page that the options name.

    Args:
        file: path, or contents of a file.
        name: of the image, for messages.
        options: what is read of it.

    Raises:
        DataError: it is not an image, is damaged, too large, or would lose something that the options do not say.
    """
    start = _start_of(file)
    if start[128:132] == b"DICM":
        return read_dicom(_stream(file), name, options)
    try:
        with open_image(file, name) as image:
            _select_page(image, options, name)
            if image.format != "TIFF" or is_plain_tiff(image):
                return _raster_of(image, name, options, file)
    except NotAnImageError:
        # Pillow knows no TIFF with, say, 13 bands
        if not start.startswith(_TIFF):
            raise
    return read_tiff(_stream(file), name, options)


@contextmanager
def open_image(file: str | Path | bytes, name: str) -> Iterator[Image.Image]:
    """An image opened by Pillow, with :data:`FORMATS` only and the limit of pixels; its errors become ours.

    Args:
        file: path, or contents of a file.
        name: of the image, for messages.

    Raises:
        DataError: it is not an image that is read, is damaged, or has too many pixels.
    """
    try:
        with Image.open(_stream(file), formats=_formats()) as image:
            refuse_huge(image.size, name)
            yield image
    except UnidentifiedImageError:
        raise NotAnImageError(
            f"{name} is not an image that can be read; {describe_start(_start_of(file))}. Expected one of "
            f"{', '.join(_formats())}"
        ) from None
    except Image.DecompressionBombError as error:
        pixels = int((re.findall(r"\d+", str(error)) or ["0"])[0])
        raise DataError(too_large(f"{name} claims {pixels:,} pixels")) from None
    except _OF_PILLOW as error:
        if isinstance(error, IDCError):
            raise
        raise DataError(f"{name} is damaged ({error}); fetch it again or leave this pair out") from error


def size_of_image(file: str | Path | bytes, name: str) -> tuple[int, int] | None:
    """Height and width of an image by its header, turned as its EXIF says; None where Pillow does not read it.

    Args:
        file: path, or contents of a file.
        name: of the image, for messages.

    Raises:
        DataError: it is damaged or has too many pixels.
    """
    try:
        with open_image(file, name) as image:
            width, height = image.size
            return (width, height) if image.getexif().get(_ORIENTATION, 1) in _SIDEWAYS else (height, width)
    except NotAnImageError:
        return None


def opacity(file: str | Path | bytes, name: str) -> np.ndarray | None:
    """How opaque each pixel is, 0 to 255, turned as its EXIF says; None without transparency, or not read by Pillow.

    Args:
        file: path, or contents of a file.
        name: of the image, for messages.

    Raises:
        DataError: it is damaged or has too many pixels.
    """
    try:
        with open_image(file, name) as image:
            if not _has_transparency(image):
                return None
            return np.array((ImageOps.exif_transpose(image) or image).convert("RGBA").getchannel("A"))
    except NotAnImageError:
        return None


def from_pil_raster(image: Image.Image, name: str, options: ImageOptions) -> Raster:
    """What a Pillow image stores: turned as its EXIF says, transparency over white unless bands are named.

    Raises:
        DataError: Pillow has lost something of it already, or the options do not say what is read.
    """
    _select_page(image, options, name)
    if image.format == "TIFF" and not is_plain_tiff(image):
        raise DataError(f"{name} is a TIFF that Pillow does not read without loss; give the path of the file instead")
    return _raster_of(image, name, options, None)


def _raster_of(image: Image.Image, name: str, options: ImageOptions, file: str | Path | bytes | None) -> Raster:
    """Values of the frame that an opened image stands at; the file is read again where there is a doubt."""
    deep = deep_channels(image, name)
    if deep is not None:
        alpha = len(deep) - 1 if len(deep) in (2, 4) else None
        return Raster(choose_bands(deep, options, name, alpha))
    top = ppm_maximum(image)
    # Pillow copies what it need not turn
    upright = image.getexif().get(ExifTags.Base.Orientation, 1) == 1
    turned = image if upright else ImageOps.exif_transpose(image) or image
    if turned.mode.startswith(("I", "F")):
        values = np.array(turned)[None]
        if image.format == "PPM" and values.dtype.kind == "i":
            values = np.rint(values * (top / 65535)).astype(np.uint16)  # Pillow stretches them to 16 bits
        return Raster(choose_bands(fill_missing(values, None, options, name), options, name))
    if image.format == "PNG" and file is not None and _ends_black(image) and png_is_short(_contents(file)):
        raise DataError(f"{name} is damaged (it holds fewer rows than its header says); fetch it again")
    if options.bands is not None or image.format == "TIFF":
        return Raster(_bands_of(turned, name, options))
    return Raster(_displayed(turned))


def _displayed(image: Image.Image) -> np.ndarray:
    """8-bit colour ``(3, H, W)``, transparency over white."""
    if _has_transparency(image):
        rgba = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", rgba.size, (255, 255, 255, 255)), rgba)
    return np.asarray(image if image.mode == "RGB" else image.convert("RGB")).transpose(2, 0, 1)


def _has_transparency(image: Image.Image) -> bool:
    return image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info


def _bands_of(image: Image.Image, name: str, options: ImageOptions) -> np.ndarray:
    """The channels as they are stored; palettes and colours of other kinds become RGB."""
    if image.mode not in ("L", "LA", "RGB", "RGBA"):
        image = image.convert("L" if image.mode == "1" else "RGB")
    values = np.array(image)
    values = values[None] if values.ndim == 2 else values.transpose(2, 0, 1)
    return choose_bands(values, options, name, len(values) - 1 if image.mode in ("LA", "RGBA") else None)


def _ends_black(image: Image.Image) -> bool:
    """Whether the last row is all zero, as it is where a PNG holds too few, which Pillow does not say."""
    width, height = image.size
    return not np.asarray(image.crop((0, height - 1, width, height))).any()


def _select_page(image: Any, options: ImageOptions, name: str) -> None:
    """Go to the page that is read; copies in lower resolution, masks and cameras' previews are not counted."""
    if image.format == "MPO":
        return
    # only files of several images have the attribute, and only they can be asked for another one
    count = int(getattr(image, "n_frames", 1))
    frames = list(range(count))
    if image.format == "TIFF" and count > 1:
        frames = []
        for frame in range(count):
            image.seek(frame)
            if not int(image.tag_v2.get(254, 0)) & (_REDUCED | _MASK):
                frames.append(frame)
    page = frames[choose_page(len(frames), options, name)]
    if count > 1:
        image.seek(page)
        refuse_huge(image.size, name)


def _formats() -> list[str]:
    """Those of the formats that this Pillow was built with."""
    for name in FORMATS:
        if name not in Image.OPEN:
            importlib.import_module(f"PIL.{_PLUGINS[name]}")  # Image.init() imports three times as many
    return [name for name in FORMATS if name in Image.OPEN]


def _stream(file: str | Path | bytes) -> Any:
    return io.BytesIO(file) if isinstance(file, bytes) else file


def _contents(file: str | Path | bytes) -> bytes:
    return file if isinstance(file, bytes) else Path(file).read_bytes()


def _start_of(file: str | Path | bytes) -> bytes:
    if isinstance(file, bytes):
        return file[:_START]
    with open(file, "rb") as opened:
        return opened.read(_START)
