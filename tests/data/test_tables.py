"""How tables are read that come from spreadsheets and data frames. Oracle: the same rows as plain CSV."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from lightning_idc.data.tables.tables import read_table
from lightning_idc.utils.errors import DataError

ROWS = [["before", "after", "captions"], ["a, b.png", "a;b.png", 'it says "a;b",\tthen\nleaves'], ["c", "d", "e"]]


def captions_in(path: Path, text: str) -> list[list[str]]:
    path.write_text(f"before,after,captions\na,b,{text}\n", encoding="utf-8")
    return [row.captions() for row in read_table(path)[1]]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("quoting", [csv.QUOTE_ALL, csv.QUOTE_MINIMAL])
def test_separators_of_all_countries(tmp_path: Path, delimiter: str, quoting: int) -> None:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, quoting=quoting).writerows(ROWS)  # type: ignore[arg-type]
    (tmp_path / "t.csv").write_bytes(text.getvalue().encode("utf-8-sig"))
    columns, rows = read_table(tmp_path / "t.csv")
    assert [columns, *(list(row.values.values()) for row in rows)] == ROWS
    assert [row.where.rpartition(" ")[2] for row in rows] == ["2", "4"]  # a text may go over lines


def test_too_many_fields_name_the_separator(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("before;after;captions\na;b;c;d\n")
    with pytest.raises(DataError, match=r"line 2: 4 fields, .* names 3; texts that hold a ';'"):
        read_table(tmp_path / "t.csv")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"[""a"", ""b""]"', ["a", "b"]),
        ('" [ ""a"" ]"', ["a"]),
        ("[]", []),
        ("[ ]", []),
        ("[unclear] a dog", ["[unclear] a dog"]),
        ("", [""]),
    ],
)
def test_lists_in_a_cell(tmp_path: Path, text: str, expected: list[str]) -> None:
    assert captions_in(tmp_path / "t.csv", text) == [expected]


@pytest.mark.parametrize("text", ["\"['a', 'b']\"", '"[""a"", 1]"', '"[""a"""', "['a']"])
def test_lists_as_python_prints_them_are_refused(tmp_path: Path, text: str) -> None:
    """Data frames write lists so; taken as one caption they would be learned with their brackets."""
    with pytest.raises(DataError, match=r"line 2: (captions is not a JSON list.*double quotes|a caption is 1)"):
        captions_in(tmp_path / "t.csv", text)


def test_a_field_beyond_csvs_limit_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="line 2: not readable as CSV"):
        captions_in(tmp_path / "t.csv", "x" * 200_000)


def test_another_encoding_is_told_with_its_line(tmp_path: Path) -> None:
    for encoding in ("utf-16", "latin-1"):
        (tmp_path / "t.csv").write_bytes("before,after,captions\na,b,é\n".encode(encoding))
        with pytest.raises(DataError, match=r"line [12]: byte 0x\w\w is not UTF-8; save the file as UTF-8"):
            read_table(tmp_path / "t.csv")
