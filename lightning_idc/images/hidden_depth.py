"""What Pillow reads with a loss and does not say: colour of more than 8 bits, odd TIFFs, PNGs with rows missing."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from lightning_idc.images.scientific import read_deep_png
from lightning_idc.utils.errors import DataError

_COLOURS = {0: 1, 1: 1, 2: 3, 3: 1, 5: 4, 6: 3, 8: 3}  # samples of a pixel by TIFF's photometric interpretation
_ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))


def deep_channels(image: Any, name: str) -> np.ndarray | None:
    """All bits ``(C, H, W)`` of an opened image of which Pillow would read the upper 8 only; None for all others.

    Raises:
        DataError: nothing here reads all bits of such a file.
    """
    # an image that is not from a file, or is decoded already, has no tiles
    tiles = getattr(image, "tile", None)
    if not tiles or not image.mode.startswith(("RGB", "LA")):
        return None
    args = tiles[0][3]
    if image.format == "PNG" and "16" in str(args):
        image.fp.seek(0)
        return read_deep_png(image.fp.read(), name)
    depth = None
    if image.format == "PPM" and ppm_maximum(image) > 255:
        depth = f"{ppm_maximum(image).bit_length()} bits per channel"
    elif image.format == "JPEG2000" and (bits := _jpeg2000_bits(image)) > 8:
        depth = f"{bits} bits per channel"
    if depth is None:
        return None
    raise DataError(
        f"{name} is a colour {image.format} of {depth}, of which 8 would be read; convert it to TIFF or 16-bit PNG"
    )


def _jpeg2000_bits(image: Any) -> int:
    """Bits per channel in the header of a JPEG 2000 codestream; 8 where it is not found."""
    place = image.fp.tell()
    image.fp.seek(0)
    start = image.fp.read(1 << 16)
    image.fp.seek(place)
    at = start.find(b"\xff\x4f\xff\x51")
    return (start[at + 42] & 0x7F) + 1 if 0 <= at < len(start) - 42 else 8


def ppm_maximum(image: Any) -> int:
    """Greatest value that the header of a PPM names, before it is decoded; 65535 where the file is something else."""
    tiles = getattr(image, "tile", None)
    args = tiles[0][3] if tiles and image.format == "PPM" else None
    if isinstance(args, tuple) and len(args) == 2:
        return int(args[1])
    return 255 if args in ("L", "RGB") else 65535


def is_plain_tiff(image: Any) -> bool:
    """Whether Pillow reads all that the current frame of a TIFF stores."""
    tags = image.tag_v2
    bits, kinds = (_as_set(tags.get(tag, 1)) for tag in (258, 339))
    photometric = tags.get(262, 1)
    extra = tags.get(277, 1) - _COLOURS.get(photometric, 3)
    if image.mode.startswith(("I", "F")):
        # missing data, unsigned 32 bits and white that is zero are read elsewhere
        exact = bits == {16} or (bits == {32} and kinds != {1})
        return exact and not extra and photometric == 1 and 42113 not in tags
    # opacity that colours are multiplied with would be divided out again
    opacity = extra == 1 and image.mode in ("RGBA", "LA") and _as_set(tags.get(338, 0)) == {2}
    return max(bits) <= 8 and kinds == {1} and (not extra or opacity)


def _as_set(value: Any) -> set[Any]:
    return set(value) if isinstance(value, tuple) else {value}


def png_is_short(data: bytes) -> bool:
    """Whether a PNG holds fewer rows than its header says, which Pillow reads as black without a word."""
    width, height = (int.from_bytes(data[at : at + 4], "big") for at in (16, 20))
    bits, kind, interlaced = data[24], data[25], data[28]
    depth = bits * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}.get(kind, 1)
    expected = 0
    for x, y, right, down in _ADAM7 if interlaced else ((0, 0, 1, 1),):
        columns, rows = -(-(width - x) // right), -(-(height - y) // down)
        expected += rows * (1 + -(-columns * depth // 8)) if columns > 0 and rows > 0 else 0
    unpack, size, at = zlib.decompressobj(), 0, 8
    while at + 8 <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        if data[at + 4 : at + 8] == b"IDAT":
            size += len(unpack.decompress(data[at + 8 : at + 8 + length]))
        at += 12 + length
    return size < expected
