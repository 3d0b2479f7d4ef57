"""Reading CSV and JSONL files of pairs: whatever is wrong with one is told with its line."""

from __future__ import annotations

import contextlib
import csv
import difflib
import json
import re
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_idc.utils.errors import DataError

KINDS = (".csv", ".jsonl")
CHUNK = 1 << 22
"""Bytes of a CSV that are read at once."""
_NUMBERED = re.compile(r"caption_(\d{1,6})")
_LIST = re.compile(r"""\s*\[\s*["'\]]""")


@dataclass(slots=True)
class Row:
    """One line of a table.

    Args:
        file: that it is read from, or what else names it in messages.
        line: of the file; 0 for none.
        values: by column; text in a CSV, anything in JSONL.
    """

    file: str | Path
    line: int
    values: dict[str, Any]

    @property
    def where(self) -> str:
        """File and line, for messages."""
        return f"{self.file}, line {self.line}" if self.line else str(self.file)

    def text(self, column: str) -> str | None:
        """Value of a column as text without blanks around it; None where it is absent or empty.

        Raises:
            DataError: it is neither text nor a whole number.
        """
        value = self.values.get(column)
        if value is None or value == "":
            return None
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise DataError(f"{self.where}: {column} is {short(value)}; expected text")
        text = str(value)
        if not text.isascii() or "\0" in text:
            writable(text, f"{self.where}: {column}")
        return text.strip() or None

    def captions(self) -> list[str]:
        """Captions of ``captions``, ``caption`` and ``caption_1`` to ``caption_n``; "" for each empty one.

        Raises:
            DataError: they are neither text nor a list of texts.
        """
        found: list[Any] = []
        given = self.values.get("captions")
        if isinstance(given, str) and _LIST.match(given):
            try:
                given = parse_json(given)
            except (ValueError, RecursionError) as error:
                raise DataError(
                    f"{self.where}: captions is not a JSON list ({error}): {short(given)}; "
                    "its texts must stand in double quotes"
                ) from None
        found += given if isinstance(given, list) else [] if given is None else [given]
        if "caption" in self.values:
            found.append(self.values["caption"])
        numbered = sorted(
            (int(m.group(1)), name)
            for name in self.values
            if name.startswith("caption_") and (m := _NUMBERED.fullmatch(name))
        )
        # tables with a column for each caption leave those blank that a pair does not have
        found += [value for _, name in numbered if (value := self.values[name]) not in (None, "")]
        for value in found:
            if value is not None and not isinstance(value, str):
                raise DataError(f"{self.where}: a caption is {short(value)}; expected text")
        texts = [" ".join((value or "").split()) for value in found]
        for text in texts:
            if not text.isascii() or "\0" in text:
                writable(text, f"{self.where}: a caption")
        return texts


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
    """Columns and rows of a CSV or JSONL file: see :func:`stream_table`."""
    columns, rows = stream_table(path)
    return columns, list(rows)


def stream_table(path: Path) -> tuple[list[str], Iterator[Row]]:
    """Columns of a CSV or JSONL file in UTF-8, with or without a byte order mark, and its rows one after the other.

    Fields of a CSV are separated by whichever of comma, semicolon and tab is commonest in its first line.

    Raises:
        DataError: the file cannot be read, with the line that is to blame.
    """
    read = _csv_rows if path.suffix.lower() == ".csv" else _json_rows
    # both read the file twice rather than keep it: a row is in memory while it is looked at
    columns = dict.fromkeys(column for row in _guarded(path, read(path, header=True)) for column in row.values)
    if not columns:
        raise DataError(f"{path} has no rows")
    return list(columns), _guarded(path, read(path))


def first_columns(path: Path) -> list[str]:
    """Columns of the first row of a table, without reading the others; [] where it has none.

    Raises:
        DataError: the file cannot be read.
    """
    read = _csv_rows if path.suffix.lower() == ".csv" else _json_rows
    with contextlib.closing(_guarded(path, read(path, header=True))) as rows:
        return next((list(row.values) for row in rows), [])


def _guarded(path: Path, rows: Iterator[Row]) -> Generator[Row, None, None]:
    """The rows, with errors of the file as ours."""
    try:
        yield from rows
    except UnicodeDecodeError:
        number, byte = _first_not_utf8(path)
        raise DataError(
            f"{path}, line {number}: byte {byte:#04x} is not UTF-8; save the file as UTF-8 "
            "(in a spreadsheet: CSV UTF-8)"
        ) from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error


def _first_not_utf8(path: Path) -> tuple[int, int]:
    """Line and value of the first byte that is not UTF-8."""
    raw = path.read_bytes()
    try:
        raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return raw.count(b"\n", 0, error.start) + 1, raw[error.start]
    return 1, raw[0]


def separator_of(line: str) -> str:
    """What stands between the fields of a CSV, by its first line."""
    # spreadsheets write what their country uses; names of columns hold none of the three
    return max(",;\t", key=line.count)


def _csv_rows(path: Path, header: bool = False) -> Iterator[Row]:
    """Rows of a CSV; with ``header`` the first one only, where the file has any."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        delimiter = separator_of(next((line for line in file if line.strip("\r\n")), ""))
        file.seek(0)
        names: list[str] | None = None
        began = 1
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        try:
            for fields in reader:
                line, began = began, reader.line_num + 1
                if not any(map(str.strip, fields)):
                    continue
                if names is None:
                    names = _header(fields, f"{path}, line {line}")
                    continue
                if len(fields) != len(names):
                    raise DataError(
                        f"{path}, line {line}: {len(fields)} fields, but the first line names {len(names)}; "
                        f"texts that hold a {delimiter!r} must stand in double quotes"
                    )
                yield Row(path, line, dict(zip(names, fields, strict=True)))
                if header:
                    return
        except csv.Error as error:
            raise DataError(
                f"{path}, line {began}: not readable as CSV ({error}); is a quotation mark left open?"
            ) from None


def _header(fields: list[str], where: str) -> list[str]:
    names = [field.strip() for field in fields]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"{where}: the column {twice[0]!r} stands twice")
    return names


def _json_rows(path: Path, header: bool = False) -> Iterator[Row]:
    # only "\n" ends a line: str.splitlines would cut texts at U+2028
    with open(path, encoding="utf-8-sig", newline="\n") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                value = parse_json(line)
            except (ValueError, RecursionError) as error:
                raise DataError(
                    f"{path}, line {number}: not readable as JSON ({error}): {short(line.rstrip())}"
                ) from None
            if not isinstance(value, dict):
                raise DataError(f"{path}, line {number}: expected one object per line, found {short(value)}")
            yield Row(path, number, value)


def parse_json(text: str) -> Any:
    """Value of a JSON text.

    Raises:
        ValueError: it is not JSON, or an object names a key twice, of which one value would be lost.
    """
    return json.loads(text, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice[:60]!r} stands twice in one object")
    return found


def writable(text: str, where: str) -> str:
    """The text, refused where it cannot be a path or be written out again."""
    if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise DataError(f"{where} holds a character that is not text: {short(text)}")
    return text


def short(value: Any) -> str:
    """A value for a message, cut to 80 characters."""
    try:
        shown = ascii(value)
    except (ValueError, RecursionError):  # numbers of thousands of digits, lists in lists
        shown = type(value).__name__
    return shown if len(shown) <= 80 else f"{shown[:77]}..."
