"""Reading text and JSON files that other programs wrote: gzip, UTF-8, one JSON document or one a line.

Whatever is wrong with a file is a :class:`DataError` that names the file and, where there is one, the line.
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
"""Size of the largest file that is read, unpacked."""
_MAX_EXCERPT = 80


def read_bytes(path: Path) -> bytes:
    """Content of a file, unpacked if it is a gzip.

    Raises:
        DataError: the file cannot be read or unpacked, or is larger than 2 GiB.
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
        raise DataError(f"{path} holds more than {MAX_BYTES >> 20:,} MiB; no annotation file does")
    return raw


def decode(raw: bytes, path: Path) -> str:
    """Text of a file in UTF-8, with or without a byte order mark.

    Raises:
        DataError: a byte is not UTF-8, with its line, or is NUL.
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
    """Text of an annotation file.

    Raises:
        DataError: it cannot be read, is not UTF-8, or is a web page.
    """
    text = decode(read_bytes(path), path)
    check_no_page(text, path)
    return text


def check_no_page(text: str, path: Path) -> None:
    """Raise a DataError for a web page, as failed downloads leave behind."""
    if text[:64].lstrip()[:1] == "<":
        raise DataError(f"{path} is an HTML or XML page, as failed downloads leave behind; fetch the file again")


def parse_json(text: str, where: str) -> Any:
    """Value of a JSON text.

    Args:
        text: the JSON.
        where: file and line for messages.

    Raises:
        DataError: the text is not JSON, or an object has a key twice, of which one value would be lost.
    """
    try:
        return _load(text)
    except RecursionError:
        raise DataError(f"{where}: not JSON (nested too deeply): {short(text.strip())}") from None
    except ValueError as error:  # also a number of thousands of digits
        raise DataError(f"{where}: not JSON ({error}): {short(text.strip())}") from None


def _load(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_reject_constant)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        twice = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]
        raise ValueError(f"the key {short(twice[0])} comes twice in one object")
    return value


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def lines_of(text: str) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, with their numbers from 1."""
    # only "\n" ends a line: str.splitlines would cut texts at U+2028
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
    """One JSON document, or a list of the documents of a JSONL text.

    Returns:
        The value, and the line of each document of a JSONL text; None for a single document.

    Raises:
        DataError: it is neither.
    """
    if not text.strip():
        raise DataError(f"{path} is empty")
    try:
        return _load(text), None
    except json.JSONDecodeError as error:
        # a broken document of several lines breaks in its first line only if each line is a document
        is_lines = error.msg == "Extra data" or (error.lineno == 1 and "\n" in text.strip())
    except (ValueError, RecursionError):
        is_lines = False
    if not is_lines:
        return parse_json(text, str(path)), None
    lines = list(lines_of(text))
    return [parse_json(line, f"{path}, line {number}") for number, line in lines], [number for number, _ in lines]


def read_json(path: Path, kind: type) -> Any:
    """Value of a JSON file.

    Args:
        path: file, perhaps packed by gzip.
        kind: ``dict`` or ``list``, whichever the file must hold.

    Raises:
        DataError: it is not JSON, or holds something else.
    """
    value = parse_json(read_text(path), str(path))
    if not isinstance(value, kind):
        raise DataError(f"{path} holds {short(value)}; expected {'an object' if kind is dict else 'a list'}")
    return value


def check_text(text: str, where: str) -> str:
    """The text itself, if it can be a path and be written out again.

    Raises:
        DataError: it holds NUL or a lone surrogate.
    """
    if (not text.isascii() or "\0" in text) and any(c == "\0" or "\ud800" <= c <= "\udfff" for c in text):
        raise DataError(f"{where} holds NUL or half of a character (a lone surrogate): {short(text)}")
    return text


def short(value: Any) -> str:
    """A value for a message, cut to 80 characters."""
    if isinstance(value, str | bytes):
        value = value[: _MAX_EXCERPT + 1]
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # numbers of thousands of digits, lists in lists
        text = type(value).__name__
    return text if len(text) <= _MAX_EXCERPT else f"{text[: _MAX_EXCERPT - 3]}..."
