"""Read JPEG 2000 files: 8-bit images with Pillow, all others with imagecodecs.

Pillow rescales values of other bit depths and mistakes a fourth band for opacity.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from lightning_idc.images.pillow import from_pillow, open_image
from lightning_idc.images.raw import (
    File,
    Pages,
    RawImage,
    channels_first,
    check_bytes,
    check_size,
    contents_of,
    decoder_errors,
    import_codec,
    scale_to_8_bits,
)

SIGNATURES = (b"\xff\x4f\xff\x51", b"\0\0\0\x0cjP  \r\n\x87\n")
_OPACITY = (1, 2)  # channel types in the cdef box; 2 is premultiplied opacity


@dataclass(frozen=True, slots=True)
class Header:
    """Header of a codestream.

    Args:
        size: width and height.
        bits: bits of each channel.
        signed: whether any channel has signed values.
        alpha: whether the last channel is opacity.
    """

    size: tuple[int, int]
    bits: tuple[int, ...]
    signed: bool
    alpha: bool


@contextmanager
def open_jpeg2000(file: File, name: str, start: bytes) -> Iterator[Pages]:
    """Open a JPEG 2000 file or codestream; yields its number of images, 1, with the function that decodes it."""
    with decoder_errors(name):
        data = contents_of(file)
        header = read_header(data)
        check_size(header.size, name)
        yield 1, lambda page: _read(data, header, name, start)


def _read(data: bytes, header: Header, name: str, start: bytes) -> RawImage:
    if set(header.bits) == {8} and not header.signed:
        with open_image(data, name, start) as image:
            if image.mode in ("L", "P", "RGB", "CMYK") or header.alpha:
                return from_pillow(image, name)
    depth = max(header.bits)
    check_bytes(header.size[0] * header.size[1] * len(header.bits) * (1 + (depth > 8)), name)
    codecs = import_codec("imagecodecs", name, f"a JPEG 2000 image of {len(header.bits)} channels and {depth} bits")
    values = codecs.jpeg2k_decode(data)
    values = scale_to_8_bits(channels_first(values, "YXS" if values.ndim == 3 else "YX", name), depth)
    alpha = values[-1] if header.alpha and len(values) > 1 else None
    if alpha is not None and 8 < depth < 16:
        alpha = (alpha.astype(float) * (65535 / ((1 << depth) - 1))).round().astype(values.dtype)
    return RawImage(values if alpha is None else values[:-1], max(8, depth), "JPEG2000", alpha=alpha)


def read_header(data: bytes) -> Header:
    """Parse the size and bit depths from the codestream, and the channel definition from the boxes around it."""
    position, alpha = 0, False
    if not data.startswith(SIGNATURES[0]):
        boxes = dict(_boxes(data, 0, len(data)))
        position, _ = boxes.get(b"jp2c", (len(data), 0))
        inner = dict(_boxes(data, *boxes[b"jp2h"])) if b"jp2h" in boxes else {}
        first, end = inner.get(b"cdef", (0, 0))
        entries = [data[entry : entry + 6] for entry in range(first + 2, end - 5, 6)]
        alpha = any(int.from_bytes(entry[2:4], "big") in _OPACITY for entry in entries)
    if data[position : position + 4] != SIGNATURES[0] or len(data) < position + 42:
        raise ValueError("it has no codestream")
    left, top, right, bottom = (int.from_bytes(data[position + i : position + i + 4], "big") for i in (16, 20, 8, 12))
    count = int.from_bytes(data[position + 40 : position + 42], "big")
    depths = data[position + 42 : position + 42 + 3 * count : 3]
    if not 0 < len(depths) == count:
        raise ValueError("its header is cut off")
    bits = tuple((depth & 0x7F) + 1 for depth in depths)
    return Header((right - left, bottom - top), bits, any(depth & 0x80 for depth in depths), alpha)


def _boxes(data: bytes, start: int, end: int) -> Iterator[tuple[bytes, tuple[int, int]]]:
    """Yield type, content start and content end of each box."""
    while start + 8 <= end:
        length, kind, head = int.from_bytes(data[start : start + 4], "big"), data[start + 4 : start + 8], 8
        if length == 1:
            length, head = int.from_bytes(data[start + 8 : start + 16], "big"), 16
        length = length or end - start
        if length < head:
            return
        yield kind, (start + head, min(end, start + length))
        start += length
