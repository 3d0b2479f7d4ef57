"""decode: an image file, by its first bytes, to the values that it stores."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from PIL.Image import Image

from lightning_idc.images import jpeg2000, tiff
from lightning_idc.images.dicom import open_dicom
from lightning_idc.images.pillow import NotAnImageError, open_image, open_pillow, raw_of
from lightning_idc.images.raw import File, Pages, RawImage, check_size, reading
from lightning_idc.utils.errors import DataError

_NAMES = "apng avif bmp dcm dicom gif j2k jfif jp2 jpeg jpg pbm pgm png pnm ppm qoi tif tiff webp"
ENDINGS = frozenset(f".{name}" for name in _NAMES.split())
"""Endings of the files that :func:`decode` reads, DICOM with the extra ``scientific``."""
_START = 4096
_ORIENTATION, _SIDEWAYS = 0x0112, (5, 6, 7, 8)  # EXIF's tag, and those of its values that swap the sides


def decode(file: File, name: str = "", page: int = 0) -> RawImage:
    """Decode one image of a file, without any loss.

    Args:
        file: Path or contents.
        name: Owner of the image, such as a pair, for messages.
        page: Index of the image in a file of several.

    Raises:
        DataError: There is no such file or page, or the file is not an image, damaged, too large, or of a kind that
            cannot be read without loss.
    """
    label = label_of(file, name)
    with _opened(file, label) as (count, read):
        return _checked(read, count, page, label)


def decode_pages(file: File, name: str = "") -> Iterator[RawImage]:
    """Decode all images of a file, one after the other.

    Args:
        file: Path or contents.
        name: Owner of the image, for messages.

    Raises:
        DataError: See :func:`decode`.
    """
    label = label_of(file, name)
    with _opened(file, label) as (count, read):
        for page in range(count):
            yield _checked(read, count, page, label)


def _checked(read: Any, count: int, page: int, label: str) -> RawImage:
    if page >= count:
        raise DataError(f"{label} holds {count} image{'s' * (count > 1)}; there is no page {page}")
    raw: RawImage = read(page)
    raw.page, raw.pages = page, count
    return raw


def decode_pil(image: Image, name: str, page: int = 0) -> RawImage:
    """Values of a Pillow image; its file is read again where it is not decoded yet and Pillow would lose bits.

    Args:
        image: Image of any mode.
        name: Name of the image, for messages.
        page: Index of the image in a file of several.

    Raises:
        DataError: The image is too large, or is decoded and of a file that Pillow does not read without loss.
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
    with reading(name):
        if image.format == "TIFF" and hasattr(image, "tag_v2") and not tiff.is_plain(image):
            raise DataError(
                f"{name} is a TIFF that Pillow does not read without loss; expected the path or the bytes of the file"
            )
        if count > 1 and page < count:
            image.seek(page)
        return _checked(lambda _: raw_of(image, name), count, page, name)


def size_of_image(file: File, name: str) -> tuple[int, int] | None:
    """Height and width of an image by its header, turned as its EXIF says; None where Pillow does not read it.

    Args:
        file: Path or contents.
        name: Owner of the image, for messages.

    Raises:
        DataError: There is no such file, or the image is too large.
    """
    label = label_of(file, name)
    start = _start_of(file, label)
    try:
        with open_image(file, label, start) as image:
            width, height = image.size
            return (width, height) if image.getexif().get(_ORIENTATION, 1) in _SIDEWAYS else (height, width)
    except NotAnImageError:
        return None


def label_of(file: Any, name: str) -> str:
    """How messages name an image."""
    if isinstance(file, (str, Path)):
        return f"{name}: {str(file)!r}" if name else repr(str(file))
    return name or "the image"


def _opened(file: File, label: str) -> AbstractContextManager[Pages]:
    """The file, opened by the reader of its format."""
    start = _start_of(file, label)
    if start[128:132] == b"DICM":
        return open_dicom(file, label)
    if start.startswith(tiff.SIGNATURES):
        return tiff.open_tiff(file, label)
    if start.startswith(jpeg2000.SIGNATURES):
        return jpeg2000.open_jpeg2000(file, label, start)
    return open_pillow(file, label, start)


def _start_of(file: File, label: str) -> bytes:
    """The first bytes."""
    if isinstance(file, bytes):
        return file[:_START]
    if not os.path.isfile(file):
        if "://" in str(file):
            raise DataError(f"{label} is an address of the network; expected the path of a file: fetch it first")
        if os.path.exists(file):
            kind = "a folder" if os.path.isdir(file) else "a pipe or a device"
            raise DataError(f"{label} is {kind}; expected the path of an image file")
        raise DataError(f"{label}: there is no image of this name; check the path and that the download is complete")
    with open(file, "rb") as opened:
        return opened.read(_START)
