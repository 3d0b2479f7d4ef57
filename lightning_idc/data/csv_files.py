"""Strict reader of CSV and TSV files on top of pyarrow, with the line number of each row."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_idc.utils.errors import DataError
from lightning_idc.utils.jsonfiles import check_not_html, decode, read_bytes, short

_BLANK_LINES = re.compile(rb"(?:[ \t,;]*(?:\r\n?|\n))*")
_MAX_HEADER = 1 << 16


@dataclass(frozen=True)
class CsvContent:
    """Parsed content of a CSV file.

    Args:
        names: fields of the header.
        columns: Arrow array of ``large_string`` for each name.
        lines: int32, first line of each row.
        odd_rows: line and number of fields of rows that have more or fewer fields than the header; these rows are
            not in the columns.
        separator: character between fields.
        header_line: line of the header.
    """

    names: list[str]
    columns: list[Any]
    lines: NDArray[np.int32]
    odd_rows: list[tuple[int, int]]
    separator: str
    header_line: int


def separator_of(header: str) -> str:
    """Detect the separator: the most frequent of comma, semicolon and tab, as spreadsheets use that of their locale."""
    return max(",;\t", key=header.count)


def read_csv(path: Path) -> CsvContent:
    """Read a CSV file in UTF-8, optionally gzipped; every cell is text.

    Raises:
        DataError: the file cannot be read, is empty, or has a misplaced quotation mark.
    """
    import pyarrow
    import pyarrow.compute as pc
    from pyarrow import csv

    raw = read_bytes(path).removeprefix(codecs.BOM_UTF8)
    check_not_html(decode(raw, path), path)
    blank = _BLANK_LINES.match(raw)
    start = blank.end() if blank else 0
    header_line, body = raw.count(b"\n", 0, start) + 1, raw[start:]
    del raw
    if not body[:_MAX_HEADER].strip():
        raise DataError(f"{path} has no rows")
    body += b"" if body.endswith((b"\n", b"\r")) else b"\n"
    separator = separator_of(re.split(rb"[\r\n]", body[:_MAX_HEADER], maxsplit=1)[0].decode(errors="replace"))
    _check_quotes(body, separator, path, header_line)

    odd: list[tuple[int, int, str]] = []

    def skip_row(row: Any) -> str:
        odd.append((row.number - 1, row.actual_columns, row.text))
        return "skip"

    # pyarrow names the columns f0, f1, ...; the header is the first row
    names = [f"f{number}" for number in range(body.count(separator.encode(), 0, _MAX_HEADER) + 1)]
    table = csv.read_csv(
        pyarrow.py_buffer(body),
        # one block: a byte order mark or a quoted line end between two blocks could be misread
        csv.ReadOptions(use_threads=False, autogenerate_column_names=True, block_size=len(body) + 1),
        csv.ParseOptions(
            delimiter=separator, newlines_in_values=True, ignore_empty_lines=False, invalid_row_handler=skip_row
        ),
        csv.ConvertOptions(check_utf8=False, column_types=dict.fromkeys(names, pyarrow.large_string())),
    )
    columns = [column.combine_chunks() for column in table.columns]
    # the height of a row in lines is 1, except where cells hold line ends
    height = np.ones(len(table) + len(odd), np.int64)
    odd_indices = np.array([index for index, _, _ in odd], np.int64)
    regular = np.delete(np.arange(len(height)), odd_indices)
    if body.count(b"\n") != len(height):
        for column in columns:
            height[regular] += pc.count_substring_regex(column, "\r\n|\r|\n").to_numpy()
        height[odd_indices] += np.array([text.count("\n") for _, _, text in odd], np.int64)
    lines = np.cumsum(height) - height + header_line
    odd_rows = [(int(lines[index]), count) for index, count, text in odd if text.strip()]
    return CsvContent(
        names=[str(pc.utf8_trim_whitespace(column[0]).as_py()) for column in columns],
        columns=[column[1:] for column in columns],
        lines=lines[regular[1:]].astype(np.int32),
        odd_rows=odd_rows,
        separator=separator,
        header_line=header_line,
    )


def _check_quotes(body: bytes, separator: str, path: Path, first_line: int) -> None:
    """Raise a DataError for an unterminated quoted field, from which pyarrow would swallow the following rows."""
    if _has_regular_quotes(body, separator):
        return
    end = f"{separator}\r\n".encode()
    # text, a quoted field up to the next separator, or a literal quotation mark within a field
    part = rb'[^"]+|(?<![^%b])"[^"]*(?:""[^"]*)*"(?=[%b]|\Z)|(?<=[^%b])"' % (end, end, end)
    parts, position = re.compile(rb"(?:" + part + rb"){0,65000}"), 0
    while position < len(body):
        match = parts.match(body, position)
        if match is None or match.end() == position:
            line = body.count(b"\n", 0, position) + first_line
            start = short(body[position : position + 60].decode(errors="replace"))
            raise DataError(
                f"{path}, line {line}: a field begins with a quotation mark and does not end with one: {start}; close "
                "it, and double quotation marks within the text"
            )
        position = match.end()


def _has_regular_quotes(body: bytes, separator: str) -> bool:
    """Whether each quotation mark opens or closes a field or is doubled; a fast path for machine-written files."""
    data = np.frombuffer(body, np.uint8)
    quotes = np.flatnonzero(data == ord('"'))
    ends = np.array([ord(separator), ord("\n"), ord("\r"), ord('"')], np.uint8)
    # the body ends with a line end, which also serves as the byte before its first
    opened, closed = np.isin(data[quotes[::2] - 1], ends), np.isin(data[quotes[1::2] + 1], ends)
    return len(quotes) % 2 == 0 and bool(opened.all() and closed.all())
