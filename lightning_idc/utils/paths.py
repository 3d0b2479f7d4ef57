"""Paths: kept below their data folder, and what the first bytes of a file say it is."""

from __future__ import annotations

import os
from pathlib import Path

from lightning_idc.utils.errors import DataError

LONGEST_NAME = 255
LONGEST_FOLDER = 3800
"""Bytes that Linux takes at most, the latter with a name below the folder to spare."""

_KINDS = (
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
)


def inside(root: str | Path, relative: str, record: str, follow_links: bool = False) -> Path:
    """Path below a root folder.

    Args:
        root: the folder.
        relative: path below it.
        record: what names the path, for the message.
        follow_links: let links lead out of the folder; ``..`` never does.

    Raises:
        DataError: the path is absolute, too long or leaves the root, also through a link.
    """
    base = Path(root).resolve()
    if not relative or Path(relative).is_absolute():
        raise DataError(f"{record}: the path {relative!r} must be relative to the data folder")
    written = Path(os.path.normpath(base / relative))
    try:
        full = (base / relative).resolve()
    except (OSError, ValueError, RuntimeError) as error:  # links in a circle, characters that no path may hold
        raise DataError(f"{record}: {relative!r} cannot be a path ({error})") from error
    if not _nameable(full) or not _nameable(written):
        raise DataError(f"{record}: {relative[:60]!r}... is longer than any path may be")
    if full.is_relative_to(base):
        return full
    if not written.is_relative_to(base):
        raise DataError(f"{record}: the path {relative!r} leaves the data folder; only files below it are read")
    if follow_links:
        return full
    raise DataError(
        f"{record}: the path {relative!r} is a link that leaves the data folder, to {str(full)!r}; only files below "
        "the folder are read. With follow_links: true what links lead to is read, too"
    )


def _nameable(path: Path) -> bool:
    """Whether files may be called so; asking the system for one that is longer is an OSError of its own."""
    return all(fits(part, LONGEST_NAME) for part in path.parts) and fits(str(path), LONGEST_FOLDER)


def fits(name: str, longest: int) -> bool:
    """Whether a name has so many bytes at most."""
    return len(name.encode(errors="surrogatepass")) <= longest


def is_web_page(start: bytes) -> bool:
    """Whether a file that begins with these bytes is HTML, as failed downloads leave behind."""
    return start.removeprefix(b"\xef\xbb\xbf").lstrip().lower().startswith((b"<!doctype", b"<html", b"<head"))


def describe_start(start: bytes) -> str:
    """What the first bytes of a file say it is instead of what was expected."""
    if not start:
        return "the file is empty"
    if is_web_page(start):
        return "it is a web page, as downloads that need a login leave behind; fetch the real file by hand"
    for offset, magic, kind in _KINDS:
        if start[offset:].startswith(magic):
            return f"it is {kind}"
    return f"its first bytes are {start[:12]!r}"
