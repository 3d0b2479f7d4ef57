"""Decode an image file to its stored values; the first bytes determine the format."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from PIL.Image import Image

from lightning_idc.images import jpeg2000, tiff
from lightning_idc.images.dicom import open_dicom
from lightning_idc.images.pillow import NotAnImageError, from_pillow, open_image, open_pillow
from lightning_idc.images.raw import File, Pages, RawImage, check_size, decoder_errors
from lightning_idc.images.sidecars import with_sidecars
from lightning_idc.utils.errors import DataError

_NAMES = "apng avif bmp dcm dicom gif j2k jfif jp2 jpeg jpg pbm pgm png pnm ppm qoi tif tiff webp"
ENDINGS = frozenset(f".{name}" for name in _NAMES.split())
"""Endings of the files that :func:`decode` reads, DICOM with the extra ``scientific``."""
_NUM_START_BYTES = 4096  # enough for the signature and the header of every format
_ORIENTATION, _SIDEWAYS = 0x0112, (5, 6, 7, 8)  # the EXIF tag, and its values that swap height and width


def decode(file: File, name: str = "", page: int = 0) -> RawImage:
    """Decode one image of a file without loss.

    Args:
        file: Path or contents.
        name: Name of the pair that the image belongs to, for messages.
        page: Index of the image in a file with several images.

    Raises:
        DataError: There is no such file or page, or the file is not an image, damaged, too large, or of a kind that
            cannot be read without loss.
    """
    label = label_of(file, name)
    with _open(file, label) as (count, read):
        return with_sidecars(_decode_page(read, count, page, label), file, label)


def decode_pages(file: File, name: str = "") -> Iterator[RawImage]:
    """Yield the decoded images of a file one after the other.

    Args:
        file: Path or contents.
        name: Name of the pair that the image belongs to, for messages.

    Raises:
        DataError: See :func:`decode`.
    """
    label = label_of(file, name)
    with _open(file, label) as (count, read):
        for page in range(count):
            yield with_sidecars(_decode_page(read, count, page, label), file, label)


def _decode_page(read: Any, count: int, page: int, label: str) -> RawImage:
    if page >= count:
        raise DataError(f"{label} has {count} image{'s' * (count > 1)}; there is no page {page}")
    raw: RawImage = read(page)
    raw.page, raw.pages = page, count
    return raw


def decode_pil(image: Image, name: str, page: int = 0) -> RawImage:
    """Return the values of a Pillow image; if it is not decoded yet and Pillow would lose bits, re-read its file.

    Args:
        image: Image of any mode.
        name: Name of the image, for messages.
        page: Index of the image in a file with several images.

    Raises:
        DataError: The image is too large, or already decoded from a file that Pillow cannot read without loss.
    """
    check_size(image.size, name)
    stream = getattr(image, "fp", None)
    if (
        stream is not None
        and getattr(image, "tile", None)
        and image.format in ("AVIF", "JPEG2000", "PNG", "PPM", "TIFF")
    ):
        position = stream.tell()
        stream.seek(0)
        contents = stream.read()
        stream.seek(position)
        return decode(contents, name, page)
    count = 1 if image.format == "MPO" else int(getattr(image, "n_frames", 1))
    with decoder_errors(name):
        if image.format == "TIFF" and hasattr(image, "tag_v2") and not tiff.is_plain(image):
            raise DataError(
                f"{name} is a TIFF that Pillow cannot read without loss; expected the path or the bytes of the file"
            )
        if count > 1 and page < count:
            image.seek(page)
        return _decode_page(lambda _: from_pillow(image, name), count, page, name)


def size_of_image(file: File, name: str) -> tuple[int, int] | None:
    """Read height and width from the header of an image, after EXIF rotation; None if Pillow cannot read the format.

    Args:
        file: Path or contents.
        name: Name of the pair that the image belongs to, for messages.

    Raises:
        DataError: There is no such file, or the image is too large.
    """
    label = label_of(file, name)
    start = _read_start(file, label)
    try:
        with open_image(file, label, start) as image:
            width, height = image.size
            return (width, height) if image.getexif().get(_ORIENTATION, 1) in _SIDEWAYS else (height, width)
    except NotAnImageError:
        return None


def label_of(file: Any, name: str) -> str:
    """Build the name of an image for messages, from its path and the name of its pair."""
    if isinstance(file, (str, Path)):
        return f"{name}: {str(file)!r}" if name else repr(str(file))
    return name or "the image"


def _open(file: File, label: str) -> AbstractContextManager[Pages]:
    """Open a file with the reader for its format."""
    start = _read_start(file, label)
    if start[128:132] == b"DICM":
        return open_dicom(file, label)
    if start.startswith(tiff.SIGNATURES):
        return tiff.open_tiff(file, label)
    if start.startswith(jpeg2000.SIGNATURES):
        return jpeg2000.open_jpeg2000(file, label, start)
    return open_pillow(file, label, start)


def _read_start(file: File, label: str) -> bytes:
    """Read the first bytes of a file or of its contents."""
    if isinstance(file, bytes):
        return file[:_NUM_START_BYTES]
    if not os.path.isfile(file):
        if "://" in str(file):
            raise DataError(f"{label} is a URL; expected the path of a file: download it first")
        if os.path.exists(file):
            kind = "a folder" if os.path.isdir(file) else "a pipe or a device"
            raise DataError(f"{label} is {kind}; expected the path of an image file")
        raise DataError(f"{label}: no such image file; check the path, and that the download is complete")
    with open(file, "rb") as opened:
        return opened.read(_NUM_START_BYTES)
