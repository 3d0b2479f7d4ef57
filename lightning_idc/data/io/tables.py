"""Reading CSV and JSONL files of pairs: whatever is wrong with one is told with its line."""

from __future__ import annotations

import csv
import difflib
import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_idc.errors import PairError

KINDS = (".csv", ".jsonl")
_NUMBERED = re.compile(r"caption_(\d{1,6})")
_LIST = re.compile(r"""\s*\[\s*["'\]]""")


@dataclass(slots=True)
class Row:
    """One line of a table.

    Args:
        where: file and line, for messages.
        values: by column; text in a CSV, anything in JSONL.
    """

    where: str
    values: dict[str, Any]

    def text(self, column: str) -> str | None:
        """Value of a column as text without blanks around it; None where it is absent or empty.

        Raises:
            PairError: it is neither text nor a whole number.
        """
        value = self.values.get(column)
        if value is None or value == "":
            return None
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise PairError(f"{self.where}: {column} is {short(value)}; expected text")
        text = writable(str(value), f"{self.where}: {column}").strip()
        return text or None

    def captions(self) -> list[str]:
        """Captions of ``captions``, ``caption`` and ``caption_1`` to ``caption_n``; "" for each empty one.

        Raises:
            PairError: they are neither text nor a list of texts.
        """
        found: list[Any] = []
        given = self.values.get("captions")
        if isinstance(given, str) and _LIST.match(given):
            try:
                given = json.loads(given)
            except (ValueError, RecursionError) as error:
                raise PairError(
                    f"{self.where}: captions is no JSON list ({error}): {short(given)}; "
                    "its texts must stand in double quotes"
                ) from None
        found += given if isinstance(given, list) else [] if given is None else [given]
        if "caption" in self.values:
            found.append(self.values["caption"])
        numbered = sorted((int(m.group(1)), name) for name in self.values if (m := _NUMBERED.fullmatch(name)))
        # tables with a column for each caption leave those blank that a pair does not have
        found += [value for _, name in numbered if (value := self.values[name]) not in (None, "")]
        for value in found:
            if value is not None and not isinstance(value, str):
                raise PairError(f"{self.where}: a caption is {short(value)}; expected text")
        return [writable(" ".join((value or "").split()), f"{self.where}: a caption") for value in found]


def is_caption_column(name: str) -> bool:
    """Whether a column holds captions."""
    return name in ("captions", "caption") or _NUMBERED.fullmatch(name) is not None


def require(columns: Sequence[str], needed: str, path: Path, why: str) -> str:
    """Message that a column is missing, with those found and the nearest."""
    near = difflib.get_close_matches(needed.lower(), {column.lower(): column for column in columns}, 1, 0.6)
    original = next((column for column in columns if near and column.lower() == near[0]), None)
    hint = f"; is it {original!r}? Rename it" if original is not None else ""
    return f"{path} has no column {needed!r} ({why}); found {', '.join(map(repr, columns)) or 'none'}{hint}"


def read_table(path: Path) -> tuple[list[str], list[Row]]:
    """Columns and rows of a CSV or JSONL file in UTF-8, with or without a byte order mark.

    Fields of a CSV are separated by whichever of comma, semicolon and tab is commonest in its first line.

    Raises:
        PairError: the file cannot be read, with the line that is to blame.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise PairError(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise PairError(
            f"{path}, line {line}: byte {raw[error.start]:#04x} is not UTF-8; save the file as UTF-8 "
            "(in a spreadsheet: CSV UTF-8)"
        ) from None
    rows = list(_csv_rows(path, text) if path.suffix.lower() == ".csv" else _json_rows(path, text))
    if not rows:
        raise PairError(f"{path} has no rows")
    return list(dict.fromkeys(column for row in rows for column in row.values)), rows


def _csv_rows(path: Path, text: str) -> Iterator[Row]:
    # spreadsheets write what their country uses; names of columns hold none of the three
    top = text.lstrip("\r\n").split("\n", 1)[0]
    delimiter = max(",;\t", key=top.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    began = 1
    try:
        for fields in reader:
            where, began = f"{path}, line {began}", reader.line_num + 1
            if not any(field.strip() for field in fields):
                continue
            if header is None:
                header = [field.strip() for field in fields]
                twice = sorted({name for name in header if header.count(name) > 1})
                if twice:
                    raise PairError(f"{where}: the column {twice[0]!r} stands twice")
                continue
            if len(fields) != len(header):
                raise PairError(
                    f"{where}: {len(fields)} fields, but the first line names {len(header)}; "
                    f"texts that hold a {delimiter!r} must stand in double quotes"
                )
            yield Row(where, dict(zip(header, fields, strict=True)))
    except csv.Error as error:
        raise PairError(
            f"{path}, line {began}: not readable as CSV ({error}); is a quotation mark left open?"
        ) from None


def _json_rows(path: Path, text: str) -> Iterator[Row]:
    # only "\n" ends a line: str.splitlines would cut texts at U+2028
    for number, line in enumerate(text.split("\n"), 1):
        where = f"{path}, line {number}"
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise PairError(f"{where}: not readable as JSON ({error}): {short(line)}") from None
        if not isinstance(value, dict):
            raise PairError(f"{where}: expected one object per line, found {short(value)}")
        yield Row(where, value)


def writable(text: str, where: str) -> str:
    """The text, refused where it cannot be a path or be written out again."""
    if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise PairError(f"{where} holds a character that is no text: {short(text)}")
    return text


def short(value: Any) -> str:
    """A value for a message, cut to 80 characters."""
    try:
        shown = ascii(value)
    except (ValueError, RecursionError):  # numbers of thousands of digits, lists in lists
        shown = type(value).__name__
    return shown if len(shown) <= 80 else f"{shown[:77]}..."
