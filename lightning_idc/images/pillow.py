"""Read common formats with Pillow, but PNG and AVIF of more than 8 bits with imagecodecs, which keeps all bits."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from lightning_idc.images.colour_space import check_colours
from lightning_idc.images.jpeg_mask import read_appended_mask
from lightning_idc.images.missing import not_finite
from lightning_idc.images.raw import (
    File,
    Pages,
    RawImage,
    apply_orientation,
    channels_first,
    check_bytes,
    check_size,
    contents_of,
    decoder_errors,
    import_codec,
    max_alpha,
    stream_of,
)
from lightning_idc.utils.errors import DataError
from lightning_idc.utils.paths import describe_start

_PLUGINS = {
    **{name: f"{name.title()}ImagePlugin" for name in ("AVIF", "BMP", "GIF", "JPEG", "PNG", "PPM", "QOI", "TIFF")},
    **{"JPEG2000": "Jpeg2KImagePlugin", "WEBP": "WebPImagePlugin"},
}
FORMATS = tuple(sorted(_PLUGINS))
"""Formats that have a signature, start no external program, and do not decode on opening."""
_PPM_HEADER = re.compile(rb"P([2356])" + rb"(?:\s|#[^\n]*\n)+(\d{1,9})" * 3)
_WITH_ALPHA = ("RGBA", "LA", "PA", "La", "RGBa")
_CONVERTED = ("CMYK", "LAB", "YCbCr", "HSV")  # colour spaces that are converted to RGB only for display


def formats() -> list[str]:
    """List the :data:`FORMATS` that the installed Pillow supports."""
    for name in FORMATS:
        if name not in Image.OPEN:
            importlib.import_module(f"PIL.{_PLUGINS[name]}")  # Image.init() imports three times as many
    return [name for name in FORMATS if name in Image.OPEN]


class NotAnImageError(DataError):
    """The file is not in a supported image format."""


@contextmanager
def open_image(file: File, name: str, start: bytes) -> Iterator[Image.Image]:
    """Open an image with Pillow and check its number of pixels."""
    with decoder_errors(name):
        try:
            image = Image.open(stream_of(file), formats=formats())
        except UnidentifiedImageError:
            raise NotAnImageError(
                f"{name} is not a supported image; {describe_start(start)}. Expected one of {', '.join(formats())}"
            ) from None
        with image:
            check_size(image.size, name)
            yield image


@contextmanager
def open_pillow(file: File, name: str, start: bytes) -> Iterator[Pages]:
    """Open a file with Pillow and yield its number of images with a function that decodes one."""
    with open_image(file, name, start) as image:
        # further images of an MPO are camera previews; n_frames exists only for multi-image formats
        pages = 1 if image.format == "MPO" else int(getattr(image, "n_frames", 1))

        def read(page: int) -> RawImage:
            if pages > 1:
                image.seek(page)
                check_size(image.size, name)
            check_colours(image, file, name)
            _scale_transparent_key(image, start)
            deep = _deep_values(image, file, start, name, page)
            raw = from_pillow(image, name) if deep is None else deep
            return _with_appended_mask(raw, image, file, name) if image.format == "JPEG" else raw

        yield pages, read


def _scale_transparent_key(image: Image.Image, start: bytes) -> None:
    """Scale the transparent grey of a PNG of 2 or 4 bits, since Pillow scales only its values."""
    key = image.info.get("transparency")
    if image.format == "PNG" and start[24] in (2, 4) and start[25] == 0 and isinstance(key, int):
        image.info["transparency"] = key % (1 << start[24]) * 255 // ((1 << start[24]) - 1)


def _with_appended_mask(raw: RawImage, image: Image.Image, file: File, name: str) -> RawImage:
    missing = read_appended_mask(file, (image.height, image.width), name)
    if missing is None:
        return raw
    return replace(raw, missing=apply_orientation(missing, image.getexif().get(ExifTags.Base.Orientation, 1)))


def from_pillow(image: Image.Image, name: str) -> RawImage:
    """Convert a Pillow image to a :class:`RawImage`, rotated according to EXIF."""
    format_name, profile = image.format or "pixels", image.info.get("icc_profile")
    if image.getexif().get(ExifTags.Base.Orientation, 1) != 1:  # exif_transpose always copies
        image = ImageOps.exif_transpose(image) or image
    key = image.info.get("transparency")
    if image.mode.startswith(("I", "F")):
        values = channels_first(np.array(image), "YX", name)
        alpha = None if key is None else np.where(values[0] == key, 0, max_alpha(values.dtype)).astype(values.dtype)
        return RawImage(values, values.dtype.itemsize * 8, format_name, not_finite(values), alpha=alpha)
    if image.mode in _CONVERTED:
        return RawImage(_planes(image), 8, format_name, profile=profile, space=image.mode)
    if image.mode in _WITH_ALPHA or key is not None:
        grey = image.mode in ("LA", "La", "L", "1")
        mode = "LA" if grey else "RGBA"
        planes = _planes(image if image.mode == mode and key is None else image.convert(mode))
        return RawImage(planes[:-1], 8, format_name, alpha=planes[-1], profile=profile)
    if image.mode not in ("L", "RGB"):
        image = image.convert("L" if image.mode == "1" else "RGB")
    return RawImage(_planes(image), 8, format_name, profile=profile)


def _planes(image: Image.Image) -> np.ndarray:
    values = np.asarray(image)
    return values[None] if values.ndim == 2 else values.transpose(2, 0, 1)


def _deep_values(image: Any, file: File, start: bytes, name: str, page: int) -> RawImage | None:
    """Decode an image that Pillow would reduce to 8 bits or rescale; None for all other images."""
    if image.format == "PNG" and start[24] == 16 and start[25] in (2, 4, 6):
        codecs = import_codec("imagecodecs", name, "a PNG with 16 bits per channel")
        values, bits = codecs.png_decode(contents_of(file)), 16
    elif image.format == "AVIF" and (bits := _avif_bits(contents_of(file))) > 8:
        codecs = import_codec("imagecodecs", name, f"an AVIF with {bits} bits per channel")
        values = codecs.avif_decode(contents_of(file), index=page)
    elif image.format == "PPM" and (header := _PPM_HEADER.match(start)) and int(header[4]) > 255:
        values, bits = _pnm_values(contents_of(file), header), int(header[4]).bit_length()
    else:
        return None
    if page and image.format == "PNG":
        raise DataError(f"{name} is an animated PNG with 16 bits per channel; only its first image is read")
    orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    planes = apply_orientation(channels_first(values, "YXS" if values.ndim == 3 else "YX", name), orientation)
    alpha = planes[-1] if len(planes) in (2, 4) else None
    if alpha is not None and bits < 16:  # opacity always spans the full range of its type
        alpha = np.rint(alpha * (65535 / ((1 << bits) - 1))).astype(np.uint16)
    planes = planes if alpha is None else planes[:-1]
    return RawImage(planes, bits, image.format, alpha=alpha, profile=image.info.get("icc_profile"))


def _avif_bits(data: bytes) -> int:
    """Read the bits per channel from the header of an AVIF."""
    position = data.find(b"av1C")
    flags = data[position + 6] if 0 <= position < len(data) - 6 else 0
    return 8 if not flags & 0x40 else 12 if flags & 0x20 else 10


def _pnm_values(data: bytes, header: re.Match[bytes]) -> np.ndarray:
    """Decode the values of a 16-bit PGM or PPM."""
    kind, width, height = header[1], int(header[2]), int(header[3])
    shape = (height, width, 3) if kind in b"36" else (height, width)
    count = int(np.prod(shape))
    check_bytes(count * 2, "the PPM")
    if kind in b"56":  # one byte of white space after the header
        return np.frombuffer(data, ">u2", count, header.end() + 1).reshape(shape)
    values = re.sub(rb"#[^\n]*", b"", data[header.end() :]).split(maxsplit=count)[:count]
    return np.array(values, np.uint16).reshape(shape)
