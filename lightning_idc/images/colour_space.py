"""Recognise colour spaces that a file marks without an ICC profile, by code points (CICP), gAMA, cHRM or EXIF."""

from __future__ import annotations

import struct

import numpy as np
from PIL import ExifTags, Image

from lightning_idc.images.raw import File, contents_of
from lightning_idc.utils.errors import DataError

_PRIMARIES = {1: "BT.709", 9: "BT.2020", 11: "DCI-P3", 12: "Display P3"}
_SRGB_PRIMARIES = (0, 1, 2, 5, 6, 7)  # BT.709, unspecified, and those of SD video, which are close
_HDR = {16: "PQ (HDR)", 18: "HLG (HDR)"}
"""Transfer characteristics by their code points."""
_GAMMA, _MAX_GAMMA_RATIO = 1 / 2.2, 1.05  # the gamma of a file that is sRGB; libpng's tolerance
_CHROMATICITIES = (0.3127, 0.329, 0.64, 0.33, 0.3, 0.6, 0.15, 0.06)  # white, red, green and blue of sRGB, x and y
_MAX_CHROMATICITY_ERROR = 0.01
_ADOBE_RGB, _ADOBE_INTEROP = 2, "R03"  # of EXIF's ColorSpace, and of the interoperability index of cameras (DCF)


def check_colours(image: Image.Image, file: File, name: str) -> None:
    """Raise an error for colours that are not sRGB and have no ICC profile.

    Args:
        image: Opened image.
        file: Path or contents.
        name: Name of the image, for the message.

    Raises:
        DataError: The colours are not those of sRGB.
    """
    space = None
    if image.format == "AVIF":
        space = _space_of_avif(contents_of(file))
    elif image.format == "PNG":
        space = _space_of_png(_png_chunks(contents_of(file)))
    elif image.format in ("JPEG", "MPO", "WEBP") and not image.info.get("icc_profile"):
        space = _space_of_exif(image.getexif())
    if space is not None:
        raise DataError(f"{name} stores colours of {space}; convert it to sRGB")


def _space_of_avif(data: bytes) -> str | None:
    position = data.find(b"colrnclx")
    if position < 0:
        return None
    primaries, transfer = struct.unpack(">HH", data[position + 8 : position + 12].ljust(4, b"\0"))
    return _space_of_code_points(primaries, transfer)


def _space_of_png(chunks: dict[bytes, bytes]) -> str | None:
    """Name the colour space of a PNG; as its specification says, cICP counts before iCCP, sRGB, and gAMA with cHRM."""
    if len(code_points := chunks.get(b"cICP", b"")) >= 2:
        return _space_of_code_points(code_points[0], code_points[1])
    if b"iCCP" in chunks or b"sRGB" in chunks:
        return None
    if len(chunks.get(b"gAMA", b"")) == 4:
        gamma = int.from_bytes(chunks[b"gAMA"], "big") / 100_000
        if gamma and not 1 / _MAX_GAMMA_RATIO <= gamma / _GAMMA <= _MAX_GAMMA_RATIO:
            return f"gamma {1 / gamma:.3g}"
    if len(chunks.get(b"cHRM", b"")) == 32:
        values = np.array(struct.unpack(">8I", chunks[b"cHRM"])) / 100_000
        if values.all() and np.abs(values - _CHROMATICITIES).max() > _MAX_CHROMATICITY_ERROR:
            return "other primaries than those of sRGB (cHRM)"
    return None


def _space_of_code_points(primaries: int, transfer: int) -> str | None:
    if primaries in _SRGB_PRIMARIES and transfer not in _HDR:
        return None
    suffix = f", {_HDR[transfer]}" if transfer in _HDR else ""
    return f"{_PRIMARIES.get(primaries, f'the primaries {primaries}')}{suffix}"


def _space_of_exif(exif: Image.Exif) -> str | None:
    """Name the colour space that cameras mark in EXIF: Adobe RGB, without embedding its profile."""
    try:
        details = exif.get_ifd(ExifTags.IFD.Exif)
        is_adobe = details.get(ExifTags.Base.ColorSpace) == _ADOBE_RGB
        interop = exif.get_ifd(ExifTags.IFD.Interop) if ExifTags.IFD.Interop in details else {}
    except (AttributeError, KeyError, OSError, SyntaxError, TypeError, ValueError, struct.error):
        return None  # damaged EXIF does not affect the pixels
    return "Adobe RGB (EXIF)" if is_adobe or interop.get(1) == _ADOBE_INTEROP else None


def _png_chunks(data: bytes) -> dict[bytes, bytes]:
    """Read the chunks of a PNG before its pixels."""
    chunks, position = {}, 8
    while position + 8 <= len(data):
        length, kind = int.from_bytes(data[position : position + 4], "big"), data[position + 4 : position + 8]
        if kind == b"IDAT":
            break
        chunks[kind] = data[position + 8 : position + 8 + length]
        position += 12 + length
    return chunks
