"""Bytes that pretend to be images: other formats, decompression bombs, page cycles, and false headers."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from typing import Any

from PIL import Image

from helpers.bad_files.weights import SYSTEM


def png(width: int, height: int, data: bytes = b"", chunks: tuple[tuple[bytes, bytes], ...] = ()) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    found = b"\x89PNG\r\n\x1a\n"
    for kind, body in ((b"IHDR", header), *chunks, (b"IDAT", data or zlib.compress(b"")), (b"IEND", b"")):
        found += struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    return found


def tiff(*entries: tuple[int, int, int, int], following: int = 0) -> bytes:
    body = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(entries)) + body + struct.pack("<I", following)


def of_pillow(kind: str, size: tuple[int, int] = (16, 16), **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size).save(buffer, kind, **options)
    return buffer.getvalue()


def dicom(rows: int, columns: int, frames: int = 1) -> bytes:
    def element(group: int, number: int, kind: bytes, value: bytes) -> bytes:
        value += b" " * (len(value) % 2)
        return struct.pack("<HH", group, number) + kind + struct.pack("<H", len(value)) + value

    meta = element(2, 0x10, b"UI", b"1.2.840.10008.1.2.1\0")
    parts = element(0x28, 2, b"US", struct.pack("<H", 1)) + element(0x28, 4, b"CS", b"MONOCHROME2")
    parts += element(0x28, 8, b"IS", str(frames).encode()) + element(0x28, 0x10, b"US", struct.pack("<H", rows))
    parts += element(0x28, 0x11, b"US", struct.pack("<H", columns)) + element(0x28, 0x100, b"US", b"\x10\0")
    parts += element(0x28, 0x101, b"US", b"\x10\0") + element(0x28, 0x103, b"US", b"\0\0")
    parts += struct.pack("<HH", 0x7FE0, 0x10) + b"OW\0\0" + struct.pack("<I", 4) + b"abcd"
    return bytes(128) + b"DICM" + element(2, 0, b"UL", struct.pack("<I", len(meta))) + meta + parts


WIDE, HIGH = (256, 4, 1, 60000), (257, 4, 1, 60000)
IMAGES: dict[str, Callable[[], bytes]] = {
    "icon": lambda: of_pillow("ICO"),
    "macOS icon": lambda: b"icns" + bytes(64),
    "PostScript": lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n(PWNED) (w) file\nshowpage\n%%EOF\n",
    "PostScript of DOS": lambda: b"\xc5\xd0\xd3\xc6" + struct.pack("<II", 30, 9) + bytes(20) + b"%!PS\nquit",
    "PDF": lambda: b"%PDF-1.7\n1 0 obj <</OpenAction <</S /Launch /F (touch PWNED)>>>> endobj",
    "SVG": lambda: b'<svg xmlns="http://www.w3.org/2000/svg"><image href="http://127.0.0.1:9/x"/></svg>',
    "XML entity": lambda: b'<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]><svg>&e;</svg>',
    "web page": lambda: b"<!doctype html><script>alert(1)</script>",
    "WMF": lambda: b"\xd7\xcd\xc6\x9a" + bytes(80),
    "XBM": lambda: b"#define x_width 60000\n#define x_height 60000\nstatic char x_bits[] = {0x00};",
    "FITS": lambda: b"SIMPLE  =                    T" + b" " * 2850,
    "HDF5": lambda: b"\x89HDF\r\n\x1a\n" + bytes(64),
    "pickle": lambda: SYSTEM,
    "object array": lambda: b"\x93NUMPY\x01\0\x76\0{'descr': '|O', 'fortran_order': False, 'shape': (1,), }" + SYSTEM,
    "PNG of 2^62 pixels": lambda: png(2**31 - 1, 2**31 - 1),
    "PNG of 3.6 G pixels": lambda: png(60000, 60000, zlib.compress(bytes(1_000_000))),
    "PNG with a text of a gigabyte": lambda: png(
        4, 4, zlib.compress(bytes(52)), ((b"zTXt", b"k\0\0" + zlib.compress(bytes(1 << 27), 9)),)
    ),
    "PNG with a profile that is a bomb": lambda: png(
        4, 4, zlib.compress(b"\0" * 10), ((b"iCCP", b"k\0\0" + zlib.compress(bytes(1 << 27), 9)),)
    ),
    "GIF of 65,535 pixels each way": lambda: b"GIF89a\xff\xff\xff\xff\0\0\0,\0\0\0\0\xff\xff\xff\xff\0\x02\0;",
    "BMP of 2^31 rows": lambda: b"BM" + bytes(8) + struct.pack("<IIiiHH", 54, 40, 60000, -(2**31), 1, 24) + bytes(24),
    "PPM of many pixels": lambda: b"P6 60000 60000 255\n",
    "JPEG of 65,500 pixels": lambda: of_pillow("JPEG").replace(b"\0\x10\0\x10\x03", b"\xff\xdc\xff\xdc\x03", 1),
    "WebP of 16,383 pixels": lambda: b"RIFF\x1a\0\0\0WEBPVP8L\x0d\0\0\0\x2f\xff\xff\xff\x0f" + bytes(8),
    "QOI of many pixels": lambda: b"qoif" + struct.pack(">IIBB", 60000, 60000, 3, 0) + bytes(8),
    "TIFF of many pixels": lambda: tiff(WIDE, HIGH, (273, 4, 1, 8), (279, 4, 1, 4)),
    "TIFF whose pages are a circle": lambda: tiff((256, 4, 1, 4), (257, 4, 1, 4), following=8),
    "TIFF of 13 bands and many pixels": lambda: tiff(WIDE, HIGH, (277, 3, 1, 13), (273, 4, 1, 8), (279, 4, 1, 4)),
    "TIFF with an array of 4 G entries": lambda: tiff((256, 4, 1, 4), (257, 4, 1, 4), (273, 4, 2**32 - 1, 8)),
    "DICOM of 65,535 rows": lambda: dicom(65535, 65535),
    "DICOM of a billion frames": lambda: dicom(8, 8, 10**9),
    "DICOM without pixels": lambda: bytes(128) + b"DICM" + bytes(64),
}
