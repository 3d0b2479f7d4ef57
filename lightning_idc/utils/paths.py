"""Check that paths stay inside their data folder, and identify files by their first bytes."""

from __future__ import annotations

import os
from pathlib import Path

from lightning_idc.utils.errors import DataError

MAX_NAME_BYTES = 255
MAX_FOLDER_BYTES = 3800
"""Limits of Linux in bytes; the limit of folders leaves room for a file name."""

_KINDS = (
    (0, b"version https://git-lfs", "a git-lfs pointer, not the file itself; run `git lfs pull` there"),
    (0, b"%!PS", "PostScript, which is a program"),
    (0, b"\xc5\xd0\xd3\xc6", "PostScript, which is a program"),
    (0, b"%PDF", "a PDF"),
    (0, b"\0\0\1\0", "a Windows icon"),
    (0, b"icns", "a macOS icon"),
    (0, b"8BPS", "a Photoshop file"),
    (0, b"\x93NUMPY", "a NumPy array"),
    (0, b"\x89HDF", "an HDF5 file"),
    (0, b"PK\x03\x04", "a zip archive"),
    (0, b"\xff\xd8\xff", "a JPEG that is damaged, lossless or has more than 8 bits per channel; convert it to PNG"),
    (0, b"\xff\x0a", "JPEG XL; convert it to PNG"),
    (4, b"JXL ", "JPEG XL; convert it to PNG"),
    (4, b"ftyphei", "a HEIC photograph"),
    (4, b"ftypmif1", "a HEIC photograph"),
    (128, b"DICM", "DICOM"),
    (0, b"\x02\0\0\0UL", "DICOM without its preamble; rewrite it, for example with dcmconv"),
    (0, b"II\xbc", "JPEG XR; convert it to PNG"),
    (0, b"\x76\x2f\x31\x01", "OpenEXR; convert it to TIFF"),
    (0, b"#?RADIANCE", "a Radiance HDR image; convert it to TIFF"),
    (0, b"PF\n", "a PFM of three channels; convert it to TIFF"),
    (0, b"P7\n", "a PAM; convert it to PNG"),
    (0, b"SIMPLE  =", "FITS; convert it to TIFF"),
    (0, b"NITF", "NITF; convert it to GeoTIFF"),
    (0, b"NSIF", "NITF; convert it to GeoTIFF"),
    (0, b"GRIB", "GRIB; convert it to GeoTIFF"),
    (0, b"CDF", "netCDF; convert it to GeoTIFF"),
    (0, b"DDS ", "a DirectDraw texture; convert it to PNG"),
    (0, b"<svg", "SVG; render it to PNG"),
    (0, b"<?xml", "XML, perhaps SVG; render it to PNG"),
    (0, b"\x1f\x8b", "gzip; unpack it"),
    (0, b"NRRD", "NRRD; convert it to TIFF"),
    (4, b"ftypmsf1", "a HEIC sequence"),
    (4, b"ftypcrx", "a camera's raw file; develop it to PNG or TIFF"),
    (0, b"IIU\0", "a camera's raw file; develop it to PNG or TIFF"),
    (0, b"IIRO", "a camera's raw file; develop it to PNG or TIFF"),
    (0, b"FUJIFILMCCD-RAW", "a camera's raw file; develop it to PNG or TIFF"),
    (4, b"ftyp", "a video or an image of an unknown kind (ISO base media)"),
    (8, b"AVI ", "a video"),
    (0, b"\x1aE\xdf\xa3", "a video"),
)


def inside(root: str | Path, relative: str, record: str, follow_links: bool = False) -> Path:
    """Resolve a path inside a root folder.

    Args:
        root: root folder.
        relative: path relative to the root folder.
        record: record that contains the path, for the message.
        follow_links: whether links may lead out of the folder; ``..`` never may.

    Raises:
        DataError: the path is absolute, too long, or leaves the root folder, possibly through a link.
    """
    base = Path(root).resolve()
    if not relative or Path(relative).is_absolute():
        raise DataError(f"{record}: the path {relative!r} must be relative to the data folder")
    lexical = Path(os.path.normpath(base / relative))
    try:
        full = (base / relative).resolve()
    except (OSError, ValueError, RuntimeError) as error:  # symlink loops, invalid characters
        raise DataError(f"{record}: {relative!r} cannot be a path ({error})") from error
    if not _is_short_enough(full) or not _is_short_enough(lexical):
        raise DataError(f"{record}: the path {relative[:60]!r}... is too long")
    if full.is_relative_to(base):
        return full
    if not lexical.is_relative_to(base):
        raise DataError(f"{record}: the path {relative!r} leaves the data folder; only files below it are read")
    if follow_links:
        return full
    raise DataError(
        f"{record}: the path {relative!r} is a link to {str(full)!r}, outside the data folder; set follow_links: true "
        "to follow such links"
    )


def _is_short_enough(path: Path) -> bool:
    """Whether a path is short enough for the system, which would raise an OSError for a longer one."""
    return all(fits(part, MAX_NAME_BYTES) for part in path.parts) and fits(str(path), MAX_FOLDER_BYTES)


def fits(name: str, max_bytes: int) -> bool:
    """Whether a name has at most ``max_bytes`` bytes."""
    return len(name.encode(errors="surrogatepass")) <= max_bytes


def is_web_page(start: bytes) -> bool:
    """Whether a file that begins with these bytes is HTML, which a failed download may have saved."""
    return start.removeprefix(b"\xef\xbb\xbf").lstrip().lower().startswith((b"<!doctype", b"<html", b"<head"))


def describe_start(start: bytes) -> str:
    """Describe the type of a file from its first bytes, for messages."""
    if not start:
        return "the file is empty"
    if is_web_page(start):
        return "it is a web page, probably of a download that needs a login; download the file by hand"
    for offset, magic, kind in _KINDS:
        if start[offset:].startswith(magic):
            return f"it is {kind}"
    return f"its first bytes are {start[:12]!r}"
