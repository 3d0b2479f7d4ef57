"""Read text and JSON files of other programs: gzip, UTF-8, JSON or JSON Lines.

Any problem with a file raises a :class:`DataError` that names the file and, where possible, the line.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from lightning_idc.utils.errors import DataError

MAX_BYTES = 2**31
"""Maximum size of a file after decompression, in bytes."""
_MAX_EXCERPT = 80


def read_bytes(path: Path) -> bytes:
    """Read the content of a file, decompressed if it is gzip.

    Raises:
        DataError: the file cannot be read or decompressed, or is larger than 2 GiB.
    """
    try:
        with open(path, "rb") as file:
            is_gzip = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            raw = (gzip.GzipFile(fileobj=file) if is_gzip else file).read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise DataError(f"there is no file {path}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error})") from error
    if len(raw) > MAX_BYTES:
        raise DataError(f"{path} has more than {MAX_BYTES >> 20:,} MiB; expected an annotation file")
    return raw


def decode(raw: bytes, path: Path) -> str:
    """Decode UTF-8 with or without a byte order mark.

    Raises:
        DataError: a byte is not UTF-8 or is NUL; the message names the line.
    """
    try:
        text = raw.decode("utf-8-sig")
        position = raw.find(b"\0")
    except UnicodeDecodeError as error:
        position = error.start
    if position >= 0:
        line = raw.count(b"\n", 0, position) + 1
        raise DataError(
            f"{path}, line {line}: byte {raw[position]:#04x} is not UTF-8 text; save the file as UTF-8 "
            "(in a spreadsheet: CSV UTF-8)"
        )
    return text


def read_text(path: Path) -> str:
    """Read the text of an annotation file.

    Raises:
        DataError: the file cannot be read, is not UTF-8, or is a web page.
    """
    text = decode(read_bytes(path), path)
    check_not_html(text, path)
    return text


def check_not_html(text: str, path: Path) -> None:
    """Raise a DataError for a web page, which a failed download may have saved."""
    if text[:64].lstrip()[:1] == "<":
        raise DataError(f"{path} is an HTML or XML page, probably of a failed download; download the file again")


def parse_json(text: str, where: str) -> Any:
    """Parse a JSON text.

    Args:
        text: JSON text.
        where: file and line, for messages.

    Raises:
        DataError: the text is not JSON, or an object has a duplicate key.
    """
    try:
        return _load(text)
    except RecursionError:
        raise DataError(f"{where}: not JSON (nested too deeply): {short(text.strip())}") from None
    except ValueError as error:  # also raised for an integer of thousands of digits
        raise DataError(f"{where}: not JSON ({error}): {short(text.strip())}") from None


def _load(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_reject_constant)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        duplicates = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]
        raise ValueError(f"the key {short(duplicates[0])} appears twice in one object")
    return value


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def lines_of(text: str) -> Iterator[tuple[int, str]]:
    """Yield the non-blank lines with their line numbers from 1."""
    # only "\n" ends a line: str.splitlines would also split at U+2028
    number, start = 0, 0
    while start < len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        number += 1
        line = text[start:end].removesuffix("\r")
        if line.strip():
            yield number, line
        start = end + 1


def parse_documents(text: str, path: Path) -> tuple[Any, list[int] | None]:
    """Parse a single JSON document or JSON Lines.

    Returns:
        The value, which is a list for JSON Lines, and the line number of each item; None for a single document.

    Raises:
        DataError: the text is neither JSON nor JSON Lines.
    """
    if not text.strip():
        raise DataError(f"{path} is empty")
    try:
        return _load(text), None
    except json.JSONDecodeError as error:
        # an error in the first of several lines means that each line is a document
        is_lines = error.msg == "Extra data" or (error.lineno == 1 and "\n" in text.strip())
    except (ValueError, RecursionError):
        is_lines = False
    if not is_lines:
        return parse_json(text, str(path)), None
    lines = list(lines_of(text))
    return [parse_json(line, f"{path}, line {number}") for number, line in lines], [number for number, _ in lines]


def read_json(path: Path, kind: type) -> Any:
    """Read a JSON file.

    Args:
        path: JSON file, optionally gzip-compressed.
        kind: expected type, ``dict`` or ``list``.

    Raises:
        DataError: the file is not JSON, or its value has another type.
    """
    value = parse_json(read_text(path), str(path))
    if not isinstance(value, kind):
        raise DataError(f"{path} holds {short(value)}; expected {'an object' if kind is dict else 'a list'}")
    return value


def check_text(text: str, where: str) -> str:
    """Return the text unchanged if it can be used as a path and encoded as UTF-8.

    Raises:
        DataError: the text contains NUL or a lone surrogate.
    """
    if (not text.isascii() or "\0" in text) and any(c == "\0" or "\ud800" <= c <= "\udfff" for c in text):
        raise DataError(f"{where} contains NUL or a lone surrogate: {short(text)}")
    return text


def short(value: Any) -> str:
    """Format a value for a message, truncated to 80 characters."""
    if isinstance(value, str | bytes):
        value = value[: _MAX_EXCERPT + 1]
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # integers of thousands of digits, deeply nested lists
        text = type(value).__name__
    return text if len(text) <= _MAX_EXCERPT else f"{text[: _MAX_EXCERPT - 3]}..."
