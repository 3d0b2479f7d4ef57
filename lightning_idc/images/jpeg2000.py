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
from lightning_idc.utils.errors import DataError

SIGNATURES = (b"\xff\x4f\xff\x51", b"\0\0\0\x0cjP  \r\n\x87\n")
_OPACITY = (1, 2)  # channel types in the cdef box; 2 is premultiplied opacity
_GREY, _YCC = 17, 18  # enumerated colour spaces


@dataclass(frozen=True, slots=True)
class Header:
    """Header of a codestream.

    Args:
        size: width and height.
        bits: bits of each channel.
        signed: whether any channel has signed values.
        alpha: whether the last channel is opacity.
        subsampled: whether any channel has fewer pixels than the image.
        space: enumerated colour space; 0 if there is none.
        profile: ICC profile of the colours.
        codestream: position of the codestream in the file.
    """

    size: tuple[int, int]
    bits: tuple[int, ...]
    signed: bool
    alpha: bool
    subsampled: bool = False
    space: int = 0
    profile: bytes | None = None
    codestream: int = 0


@contextmanager
def open_jpeg2000(file: File, name: str, start: bytes) -> Iterator[Pages]:
    """Open a JPEG 2000 file or codestream; yields its number of images, 1, with the function that decodes it."""
    with decoder_errors(name):
        data = contents_of(file)
        header = read_header(data)
        check_size(header.size, name)
        yield 1, lambda page: _read(data, header, name, start)


def _read(data: bytes, header: Header, name: str, start: bytes) -> RawImage:
    if len(set(header.bits)) > 1 or header.subsampled:
        kind = "stores colours at a lower resolution" if header.subsampled else f"has channels of {header.bits} bits"
        raise DataError(f"{name} {kind}; expected channels of one size and depth: convert it, for example to PNG")
    if set(header.bits) == {8} and not header.signed:
        with open_image(data, name, start) as image:
            bands = header.space == _GREY and len(header.bits) > 2  # of GDAL, which Pillow cannot decode
            if not bands and (image.mode in ("L", "P", "RGB", "CMYK") or header.alpha):
                raw = from_pillow(image, name)
                raw.profile = raw.profile or header.profile
                return raw
    depth = max(header.bits)
    if header.space == _YCC:
        raise DataError(f"{name} stores YCC colours of {depth} bits, which are not read; convert it to RGB")
    check_bytes(header.size[0] * header.size[1] * len(header.bits) * (1 + (depth > 8)), name)
    codecs = import_codec("imagecodecs", name, f"a JPEG 2000 image of {len(header.bits)} channels and {depth} bits")
    # imagecodecs would apply the profile, and return 8 bits; it does not see it in the codestream alone
    values = codecs.jpeg2k_decode(data if header.profile is None else data[header.codestream :])
    values = scale_to_8_bits(channels_first(values, "YXS" if values.ndim == 3 else "YX", name), depth)
    alpha = values[-1] if header.alpha and len(values) > 1 else None
    if alpha is not None and 8 < depth < 16:
        alpha = (alpha.astype(float) * (65535 / ((1 << depth) - 1))).round().astype(values.dtype)
    return RawImage(
        values if alpha is None else values[:-1], max(8, depth), "JPEG2000", alpha=alpha, profile=header.profile
    )


def read_header(data: bytes) -> Header:
    """Parse the size and bit depths from the codestream, and the channel definition from the boxes around it."""
    position, alpha, space, profile = 0, False, 0, None
    if not data.startswith(SIGNATURES[0]):
        boxes = dict(_boxes(data, 0, len(data)))
        position, _ = boxes.get(b"jp2c", (len(data), 0))
        inner = dict(_boxes(data, *boxes[b"jp2h"])) if b"jp2h" in boxes else {}
        first, end = inner.get(b"cdef", (0, 0))
        entries = [data[entry : entry + 6] for entry in range(first + 2, end - 5, 6)]
        alpha = any(int.from_bytes(entry[2:4], "big") in _OPACITY for entry in entries)
        space, profile = _colours(data, *inner.get(b"colr", (0, 0)))
    if data[position : position + 4] != SIGNATURES[0] or len(data) < position + 42:
        raise ValueError("it has no codestream")
    left, top, right, bottom = (int.from_bytes(data[position + i : position + i + 4], "big") for i in (16, 20, 8, 12))
    count = int.from_bytes(data[position + 40 : position + 42], "big")
    depths = data[position + 42 : position + 42 + 3 * count : 3]
    if not 0 < len(depths) == count:
        raise ValueError("its header is cut off")
    bits = tuple((depth & 0x7F) + 1 for depth in depths)
    steps = (data[position + 43 + 3 * channel + axis] for channel in range(count) for axis in (0, 1))
    signed, subsampled = any(depth & 0x80 for depth in depths), any(step != 1 for step in steps)
    return Header((right - left, bottom - top), bits, signed, alpha, subsampled, space, profile, position)


def _colours(data: bytes, start: int, end: int) -> tuple[int, bytes | None]:
    """Read the enumerated colour space, or the ICC profile, of a colour specification box."""
    method = data[start] if start < end else 0
    if method == 2:
        return 0, data[start + 3 : end]
    return int.from_bytes(data[start + 3 : start + 7], "big") if method == 1 else 0, None


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
