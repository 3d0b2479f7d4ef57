"""Mask that GDAL appends to a JPEG: deflated bits, one per pixel, after the end of the image, and their offset."""

from __future__ import annotations

import io
import os
import struct
import zlib

import numpy as np

from lightning_idc.images.raw import File
from lightning_idc.utils.errors import DataError

_END_OF_IMAGE = b"\xff\xd9"


def read_appended_mask(file: File, size: tuple[int, int], name: str) -> np.ndarray | None:
    """Read which pixels the mask of a JPEG marks as missing, bool ``(1, H, W)``; None for a file without a mask.

    Bits are set for valid pixels, run through all rows without padding, and begin with the lowest of a byte (GDAL,
    ``frmts/jpeg``).

    Args:
        file: Path or contents.
        size: Height and width of the stored image.
        name: Name of the image, for messages.

    Raises:
        DataError: The mask is damaged, or of another size.
    """
    with io.BytesIO(file) if isinstance(file, bytes) else open(file, "rb") as stream:
        length = stream.seek(0, os.SEEK_END)
        if length < 8:
            return None
        stream.seek(length - 4)
        (offset,) = struct.unpack("<I", stream.read(4))
        if not length // 2 <= offset < length - 4:
            return None
        stream.seek(offset - 2)
        if stream.read(2) != _END_OF_IMAGE:
            return None
        packed = stream.read(length - 4 - offset)
    pixels = size[0] * size[1]
    expected = size[0] * -(-size[1] // 8)  # as if rows were padded: the last bytes are then unused
    try:
        bits = zlib.decompressobj().decompress(packed, expected + 1)
    except zlib.error as error:
        raise DataError(f"{name} has a damaged mask after the image ({error}); download it again") from error
    if len(bits) != expected:
        raise DataError(f"{name} has a mask of {len(bits):,} bytes after the image; expected {expected:,}")
    valid = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")[:pixels]
    return np.asarray(valid.reshape(1, *size) == 0)
