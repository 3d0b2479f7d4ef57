"""Readers of CSV, TSV, JSONL and JSON tables as columns of text with line numbers.

All cells of a CSV are text, such as the caption "NA" and the id 007. Malformed rows are collected in :class:`Faults`;
one error lists the first five with their lines.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_idc.data.annotations import AnnotationRow
from lightning_idc.data.csv_files import read_csv
from lightning_idc.utils.errors import DataError
from lightning_idc.utils.jsonfiles import (
    check_text,
    lines_of,
    parse_documents,
    parse_json,
    read_text,
    short,
)

ENDINGS = (".csv", ".tsv", ".jsonl")
"""Extensions of tables that are detected in a folder; a ``.json`` file must be specified explicitly."""
MAX_LISTED = 5
_CHUNK = 8192  # number of JSONL rows held as Python objects at once
_CAPTION_N = re.compile(r"caption_\d{1,6}")


def table_ending(path: Path) -> str | None:
    """Return the extension of a table without ``.gz``; None if the file is not a table."""
    name = path.name.lower().removesuffix(".gz")
    return next((ending for ending in (*ENDINGS, ".json") if name.endswith(ending)), None)


def table_stem(path: Path) -> str:
    """Return the file name of a table without its extensions."""
    return path.name[: path.name.lower().rfind(table_ending(path) or "")]


def is_caption_column(name: str) -> bool:
    """Whether a column holds captions."""
    return name in ("captions", "caption") or _CAPTION_N.fullmatch(name) is not None


def missing_column(columns: Sequence[str], needed: str, path: Path, meaning: str) -> str:
    """Describe a missing column, with the closest existing name as a hint."""
    matches = difflib.get_close_matches(needed.lower(), {column.lower(): column for column in columns}, 1, 0.6)
    original = next((column for column in columns if matches and column.lower() == matches[0]), None)
    # an entry or a field of a column, such as images.0, is no name for a column
    is_part = original is not None and "." in needed and "." not in original
    hint = f"; rename {original!r} to {needed!r}?" if original is not None and not is_part else ""
    return f"{path} has no column {needed!r} ({meaning}); found {', '.join(map(repr, columns)) or 'none'}{hint}"


def check_columns(columns: Sequence[str], required: Iterable[str], path: Path, meaning: str) -> None:
    """Check that a table has columns.

    Args:
        columns: columns of the table.
        required: columns that it must have.
        path: path of the table, for the message.
        meaning: what the columns are, for the message.

    Raises:
        DataError: a column is missing.
    """
    for name in required:
        if name not in columns:
            raise DataError(missing_column(columns, name, path, meaning))


class Faults:
    """Collector of malformed rows of a table: the number of rows, and the messages of the first five.

    Args:
        path: path of the table.
        unit: word for a row in messages; None for "record" in a JSON file and "line" in any other.
    """

    def __init__(self, path: Path, unit: str | None = None) -> None:
        self.path = path
        self.unit = unit if unit is not None else "record" if table_ending(path) == ".json" else "line"
        self._numbers: set[int] = set()
        self._messages: dict[int, str] = {}

    def where(self, number: int) -> str:
        """Format file and line of a row, for error messages."""
        return f"{self.path}, {self.unit} {number}"

    def add(self, number: int, message: str) -> None:
        """Add one row; only the first message of a row is kept."""
        self._numbers.add(number)
        self._messages.setdefault(number, message.removeprefix(f"{self.where(number)}: "))
        if len(self._messages) > MAX_LISTED:
            del self._messages[max(self._messages)]

    def add_rows(self, lines: NDArray[Any], describe: Callable[[int], str]) -> None:
        """Add many rows.

        Args:
            lines: line of each row, in ascending order.
            describe: function of an index into ``lines`` that returns the message; called for the first five rows.
        """
        self._numbers.update(lines.tolist())
        for index, number in enumerate(lines[:MAX_LISTED].tolist()):
            self.add(number, describe(index))

    @contextmanager
    def collect(self, row: AnnotationRow) -> Iterator[None]:
        """Add the row if the body of the ``with`` statement raises a DataError."""
        try:
            yield
        except DataError as error:
            self.add(row.number, str(error))

    def check(self) -> None:
        """Raise a DataError if any row was added."""
        if not self._numbers:
            return
        messages = [f"{self.unit} {number}: {self._messages[number]}" for number in sorted(self._messages)]
        if len(self._numbers) == 1:
            raise DataError(f"{self.path}, {messages[0]}")
        more = "; ..." if len(self._numbers) > MAX_LISTED else ""
        raise DataError(f"{self.path}: {len(self._numbers):,} rows cannot be read: {'; '.join(messages)}{more}")


@dataclass
class Table:
    """A table as columns of text.

    Args:
        faults: malformed rows, which are not in the columns.
        names: names of all columns, in order.
        columns: Arrow arrays of ``large_string`` by name, "" for an empty or absent cell. A list in a JSON file is the
            JSON text of the list, as in a CSV.
        lines: int32, line or record number of each row.
    """

    faults: Faults
    names: list[str]
    columns: dict[str, Any]
    lines: NDArray[np.int32]

    @property
    def path(self) -> Path:
        return self.faults.path

    def __len__(self) -> int:
        return len(self.lines)


def read_table(path: Path, column_filter: Callable[[str], bool] = lambda name: True) -> Table:
    """Read a CSV, TSV, JSONL or JSON file in UTF-8, optionally gzipped.

    The separator of a CSV is the most frequent of comma, semicolon and tab in its first line. Quotation marks are
    special only at the start of a field.

    Args:
        path: path of the table.
        column_filter: predicate that selects the columns of a JSON file; values of other columns are not checked.

    Raises:
        DataError: the file is not a table, or has no rows.
    """
    table = _read_csv(path) if table_ending(path) in (".csv", ".tsv") else _read_json(path, column_filter)
    if not len(table):
        table.faults.check()
        raise DataError(f"{path} has no rows")
    return table


def read_rows(path: Path) -> tuple[list[str], list[AnnotationRow]]:
    """Read the column names and rows of a table; cells of a JSON file keep their types, those of a CSV are text.

    Raises:
        DataError: the file is not a table, has no rows, or has malformed rows.
    """
    if table_ending(path) in (".csv", ".tsv"):
        table = _read_csv(path)
        faults, columns = table.faults, list(table.columns)
        cells = zip(*(column.to_pylist() for column in table.columns.values()), strict=True)
        numbered_values = zip(table.lines.tolist(), cells, strict=True)
        rows = [
            AnnotationRow(faults.where(line), dict(zip(columns, values, strict=True)), line)
            for line, values in numbered_values
        ]
        faults.check()
    else:
        rows = read_objects(path)
        columns = list(dict.fromkeys(name for row in rows for name in row.values))
    if not rows:
        raise DataError(f"{path} has no rows")
    return columns, rows


def read_objects(path: Path) -> list[AnnotationRow]:
    """Read the objects of a JSON list, or of a file with one object per line.

    Raises:
        DataError: the file has another format, or some of its records are malformed.
    """
    faults = Faults(path, "line" if table_ending(path) in ENDINGS else "record")
    rows = [AnnotationRow(faults.where(number), values, number) for number, values in _json_rows(faults)]
    faults.check()
    return rows


# ---- CSV ------------------------------------------------------------------------------------------------------


def _read_csv(path: Path) -> Table:
    content = read_csv(path)
    faults = Faults(path)
    duplicates = sorted({name for name in content.names if name and content.names.count(name) > 1})
    if duplicates:
        raise DataError(f"{faults.where(content.header_line)}: duplicate column {duplicates[0]!r}")
    for line, count in content.odd_rows:
        faults.add(
            line,
            f"{count} fields, but the header has {len(content.names)}; texts that contain {content.separator!r} must "
            "be in double quotes",
        )
    columns = {name: column for name, column in zip(content.names, content.columns, strict=True) if name}
    return _without_blank_rows(Table(faults, list(columns), columns, content.lines))


def _without_blank_rows(table: Table) -> Table:
    """Remove blank rows, including rows of separators only, which spreadsheets write."""
    import pyarrow
    import pyarrow.compute as pc

    blank = np.ones(len(table), bool)
    for column in table.columns.values():
        if not blank.any():
            return table
        blank &= pc.equal(pc.utf8_trim_whitespace(column), "").to_numpy(zero_copy_only=False)
    filled = pyarrow.array(~blank)
    columns = {name: column.filter(filled) for name, column in table.columns.items()}
    return Table(table.faults, table.names, columns, table.lines[~blank])


# ---- JSON -----------------------------------------------------------------------------------------------------


def _json_rows(faults: Faults) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a JSON list or of JSON lines, with their record or line numbers."""
    text = read_text(faults.path)
    is_document = faults.unit == "record"
    if is_document:
        value, lines = parse_documents(text, faults.path)
        faults.unit = "record" if lines is None else "line"
        value = value if isinstance(value, list) else [value]
        numbered_values: Iterator[tuple[int, Any]] = iter(zip(lines or range(1, len(value) + 1), value, strict=True))
    else:
        numbered_values = lines_of(text)
    for number, value in numbered_values:
        try:
            row = parse_json(value, faults.where(number)) if not is_document else value
        except DataError as error:
            faults.add(number, str(error))
            continue
        if isinstance(row, dict):
            yield number, row
        else:
            faults.add(number, f"expected an object, found {short(row)}")


def _read_json(path: Path, column_filter: Callable[[str], bool]) -> Table:
    import pyarrow

    faults = Faults(path)
    names: dict[str, None] = {}
    chunks: dict[str, list[Any]] = {}
    cells: dict[str, list[str]] = {}
    lines: list[int] = []

    def flush() -> None:
        for name, texts in cells.items():
            chunks[name].append(pyarrow.array(texts, pyarrow.large_string()))
            texts.clear()

    for number, row in _json_rows(faults):
        if not row.keys() <= names.keys():
            for name in row.keys() - names.keys():
                if column_filter(name):
                    flushed, pending = len(lines) // _CHUNK * _CHUNK, len(lines) % _CHUNK
                    chunks[name] = [pyarrow.repeat(pyarrow.scalar("", pyarrow.large_string()), flushed)]
                    cells[name] = [""] * pending
            names |= dict.fromkeys(row)
        try:
            texts = [_cell(row.get(name), name) for name in cells]
        except DataError as error:
            faults.add(number, str(error))
            continue
        for column, text in zip(cells.values(), texts, strict=True):
            column.append(text)
        lines.append(number)
        if len(lines) % _CHUNK == 0:
            flush()
    flush()
    columns = {name: pyarrow.chunked_array(parts).combine_chunks() for name, parts in chunks.items()}
    return Table(faults, list(names), columns, np.array(lines, np.int32))


def _cell(value: Any, name: str) -> str:
    """Convert a JSON value to the text that a CSV would contain."""
    if isinstance(value, str):
        return check_text(value, name)
    if value is None:
        return ""
    if isinstance(value, list) and name in ("captions", "images"):
        return check_text(json.dumps(value, ensure_ascii=False), name)
    if isinstance(value, int) and not isinstance(value, bool) and not is_caption_column(name):
        return str(value)
    raise DataError(f"{name} is {short(value)}; expected text")
