"""Reading annotation files in JSON, JSON lines and their gzip: whatever is wrong with one is told with its place."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lightning_idc.data.tables.tables import Row, parse_json, short, writable
from lightning_idc.utils.errors import PairError
from lightning_idc.utils.paths import describe_start, is_web_page

MOST_BYTES = 2**31
"""An annotation file that unpacks to more is refused."""


def find(root: Path, *names: str) -> Path | None:
    """The first of some files that is there, as it is named or with ``.gz``."""
    options = (root / f"{name}{ending}" for name in names for ending in ("", ".gz"))
    return next((path for path in options if path.is_file()), None)


def read_text(path: Path) -> str:
    """Text of a file in UTF-8, unpacked where it ends with ``.gz``.

    Raises:
        PairError: it cannot be read or unpacked, is not UTF-8, a web page, or longer than 2 GiB.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise PairError(f"{path} cannot be read ({error}); fetch it again") from error
    if len(raw) > MOST_BYTES:
        raise PairError(f"{path} holds more than {MOST_BYTES:,} bytes; this is not an annotation file")
    if is_web_page(raw[:64]):
        raise PairError(f"{path}: {describe_start(raw[:64])}")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PairError(f"{path}: byte {error.start} is not UTF-8; fetch the file again") from None


def read_json(path: Path, kind: type) -> Any:
    """Value of a JSON file.

    Args:
        path: of the file, perhaps with ``.gz``.
        kind: ``dict`` or ``list``, whichever the file must hold.

    Raises:
        PairError: it is not JSON, or holds something else.
    """
    text = read_text(path)
    try:
        value = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise PairError(f"{path} is not readable as JSON ({error}); fetch it again") from None
    if not isinstance(value, kind):
        expected = "an object" if kind is dict else "a list"
        raise PairError(f"{path} holds {short(value)}; expected {expected}")
    return value


def read_objects(path: Path) -> list[Row]:
    """Objects of a JSON list, or of a file with one object per line.

    Raises:
        PairError: it is neither, with the place that is to blame.
    """
    text = read_text(path)
    if text.lstrip()[:1] == "[":
        return list(_listed(path))
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                rows.append(_row(parse_json(line), f"{path}, line {number}"))
            except (ValueError, RecursionError) as error:
                if isinstance(error, PairError):
                    raise
                raise PairError(f"{path}, line {number}: not readable as JSON ({error})") from None
    return rows


def _listed(path: Path) -> Iterator[Row]:
    for number, value in enumerate(read_json(path, list), 1):
        yield _row(value, f"{path}, record {number}")


def _row(value: Any, where: str) -> Row:
    if not isinstance(value, dict):
        raise PairError(f"{where}: expected an object, found {short(value)}")
    return Row(where, 0, value)


def needed(row: Row, column: str) -> str:
    """Text of a column that must not be empty.

    Raises:
        PairError: it is absent, empty or no text.
    """
    found = row.text(column)
    if found is None:
        raise PairError(
            f"{row.where}: {column} is absent or empty; found {', '.join(map(repr, row.values)) or 'nothing'}"
        )
    return found


def sentences(value: Any, where: str) -> list[str]:
    """Sentences of a text, of a list of texts, or of lists of words; "" for each empty one.

    Raises:
        PairError: it is something else.
    """
    given = value if isinstance(value, list) else [value]
    given = [" ".join(part) if _is_words(part) else part for part in given]
    for sentence in given:
        if not isinstance(sentence, str):
            raise PairError(f"{where}: a sentence is {short(sentence)}; expected text")
    return [writable(" ".join(sentence.split()), f"{where}: a sentence") for sentence in given]


def _is_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)
