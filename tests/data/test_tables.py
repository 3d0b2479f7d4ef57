"""Tables of CSV, TSV, JSONL and JSON. Oracle: the rows as written, and Python's csv."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightning_idc.data.tables.tables import read_rows, read_table
from lightning_idc.utils.errors import DataError

NAMES = ["before", "after", "captions"]
ROWS = [["a, b.png", "a;b.png", 'it says "a;b",\tthen\nleaves'], ["c", "d", "NA"], ["007", "", "None"]]


def cells_of(path: Path) -> list[list[str]]:
    table = read_table(path)
    table.faults.check()
    return [list(row) for row in zip(*(table.columns[name].to_pylist() for name in NAMES), strict=True)]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("quoting", [csv.QUOTE_ALL, csv.QUOTE_MINIMAL])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("name", ["t.csv", "t.TSV", "t.csv.gz"])
def test_text_is_read_as_written(tmp_path: Path, delimiter: str, quoting: Any, end: str, name: str) -> None:
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=delimiter, quoting=quoting, lineterminator=end).writerows([NAMES, *ROWS])
    raw = (text.getvalue() + end + delimiter * 2 + end).encode("utf-8-sig")
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    assert cells_of(tmp_path / name) == ROWS
    assert read_table(tmp_path / name).lines.tolist() == [2, 4, 5]  # a cell may span lines
    columns, rows = read_rows(tmp_path / name)
    assert [columns, *(list(row.values.values()) for row in rows)] == [NAMES, *ROWS]
    assert rows[1].where == f"{tmp_path / name}, line 4"


@pytest.mark.parametrize("name", ["t.jsonl", "t.json", "t.jsonl.gz"])
def test_json_is_read_as_text(tmp_path: Path, name: str) -> None:
    objects = [dict(zip(NAMES, row, strict=True)) for row in ROWS]
    objects += [{"after": 7, "before": None, "captions": ["ü", "x\u2028y"], "other": {"deep": [1.5]}}]
    text = json.dumps(objects) if name == "t.json" else "\n\n".join(json.dumps(row) for row in objects)
    raw = text.encode("utf-8-sig")
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    wanted = read_table(tmp_path / name, NAMES.__contains__)
    assert sorted(wanted.columns) == sorted(NAMES) and "other" in wanted.names
    cells = [[wanted.columns[column][row].as_py() for column in NAMES] for row in range(4)]
    assert cells == [*ROWS, ["", "7", json.dumps(["ü", "x\u2028y"], ensure_ascii=False)]]
    assert wanted.lines.tolist() == ([1, 2, 3, 4] if name == "t.json" else [1, 3, 5, 7])
    assert [row.values for row in read_rows(tmp_path / name)[1]] == objects


cells = st.text(alphabet='ab,;"\r\n é\u2028\ufeff', max_size=6)


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.tuples(cells, cells, cells), max_size=5),
    raw=st.text(alphabet='ab,"\r\n', max_size=30),
    quoting=st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_csv_rows_equal_python_csv(
    tmp_path: Path, rows: list[tuple[str, str, str]], raw: str, quoting: Any, end: str
) -> None:
    text = io.StringIO(newline="")
    csv.writer(text, quoting=quoting, lineterminator=end).writerows([NAMES, *rows])
    for content in (text.getvalue(), text.getvalue() + raw):
        try:
            expected = list(csv.reader(io.StringIO(content, newline=""), strict=True))
        except csv.Error:
            expected = [[]]  # pyarrow may accept more, but must not lose a row
        expected = [row for row in expected[1:] if any(map(str.strip, row))]
        (tmp_path / "t.csv").write_bytes(content.encode())
        try:
            assert cells_of(tmp_path / "t.csv") == expected
        except DataError as error:
            is_sound = expected and all(len(row) == len(NAMES) for row in expected)
            assert not is_sound or content != text.getvalue(), error


BAD: dict[str, tuple[str, bytes, str]] = {
    "nothing": ("t.csv", b"", r"t\.csv has no rows"),
    "blank lines": ("t.csv", b"\n \n;;\n", r"t\.csv has no rows"),
    "header only": ("t.csv", b"before,after\n", r"t\.csv has no rows"),
    "too many fields": (
        "t.csv",
        b"a;b\n1;2\n1;2;3\n",
        r"t\.csv, line 3: 3 fields, but the header has 2; .*contain ';' must",
    ),
    "too few fields": ("t.csv", b'a,b\n"1\n",2\n\n1\n', r"t\.csv, line 5: 1 fields, but the header has 2"),
    "twice": ("t.csv", b"\nbefore,before\n1,2\n", r"line 2: duplicate column 'before'"),
    "quote open": ("t.csv", b'a,b\n1,2\n3,"open\n4,5\n', r"line 3: a field begins with a quotation mark and does not"),
    "quote swallows": ("t.csv", b'a,b\n1,"open\n3,"next"\n', r"line 2: a field begins .*: '\"open"),
    "quote inside": ("t.csv", b'a,b\n1,"say "hi" there"\n', r"line 2: .*double quotation marks within the text"),
    "utf-16": ("t.csv", "a,b\n1,é\n".encode("utf-16"), r"line 1: byte 0xff is not UTF-8 text; save the file as UTF-8"),
    "latin": ("t.csv", b"a,b\n1,\xe9\n", r"line 2: byte 0xe9 is not UTF-8 text"),
    "nul": ("t.csv", b"a,b\n1,\0\n", r"line 2: byte 0x00 is not UTF-8 text"),
    "page": ("t.csv", b"<!doctype html><p>", r"HTML or XML page"),
    "cut gzip": ("t.csv.gz", gzip.compress(b"a,b\n1,2\n" * 99)[:-9], r"t\.csv\.gz cannot be read"),
    "cut": ("t.jsonl", b'{"a": 1}\n{"a": "bef', r"t\.jsonl, line 2: not JSON \(Unterminated"),
    "list": ("t.jsonl", b'{"a": 1}\n[1, 2]', r"line 2: expected an object, found \[1, 2\]"),
    "twin keys": ("t.jsonl", b'{"a": "c", "a": "d"}', r"line 1: not JSON \(the key 'a' appears twice"),
    "NaN": ("t.jsonl", b'{"a": NaN}', r"line 1: not JSON \(NaN is not a JSON number"),
    "digits": ("t.jsonl", b'{"a": ' + b"9" * 5000 + b"}", r"line 1: not JSON \(Exceeds the limit"),
    "deep": ("t.jsonl", b"[" * 100_000, r"line 1: not JSON \(nested too deeply"),
    "latin line": ("t.jsonl", b'{"a": 1}\n{"a": "\xe9"}', r"line 2: byte 0xe9 is not UTF-8 text"),
    "JSON number": ("t.json", b"[3]", r"record 1: expected an object, found 3"),
    "many": (
        "t.jsonl",
        b'{"a": 1}\n' + b"3\n" * 1234,
        r"t\.jsonl: 1,234 rows cannot be read: line 2: expected [^;]*; line 3: .*; line 6: [^;]*; \.\.\.$",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_rows_are_listed_with_their_lines(tmp_path: Path, name: str) -> None:
    file, raw, message = BAD[name]
    (tmp_path / file).write_bytes(raw)
    with pytest.raises(DataError, match=message) as caught:
        read_rows(tmp_path / file)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1500
    with pytest.raises(DataError, match=message):
        read_table(tmp_path / file).faults.check()


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ('{"before": 1.5}', "line 1: before is 1.5; expected text"),
        ('{"before": true}', "line 1: before is True; expected text"),
        ('{"captions": 3}', "line 1: captions is 3; expected text"),
        ('{"before": ["a"]}', "line 1: before is .*; expected text"),
        ('{"before": "a\\u0000"}', "line 1: before contains NUL or a lone surrogate"),
        ('{"captions": "\\ud800"}', "line 1: captions contains NUL or a lone surrogate"),
    ],
)
def test_invalid_json_cells_are_listed(tmp_path: Path, cell: str, message: str) -> None:
    (tmp_path / "t.jsonl").write_text(cell)
    with pytest.raises(DataError, match=message):
        read_table(tmp_path / "t.jsonl")


def test_decompression_bomb_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_idc.utils.jsonfiles.MAX_BYTES", 1000)
    (tmp_path / "bomb.csv").write_bytes(gzip.compress(b"a,b\n" * 100_000))
    with pytest.raises(DataError, match="has more than"):
        read_table(tmp_path / "bomb.csv")
