"""Tables that are read column by column. Oracle: Python's csv, and the same tables read row by row."""

from __future__ import annotations

import csv
import io
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightning_idc.data.benchmarks.folder import FolderPairs
from lightning_idc.data.tables import pair_folders, tables
from lightning_idc.data.tables.plain_csv import read_plain_csv
from lightning_idc.utils.errors import IDCError

NAMES = ["before", "after", "caption"]
cells = st.text(alphabet='ab,;"\r\n é\u2028\ufeff', max_size=6)


def by_csv(text: str) -> list[tuple[int, list[str]]] | None:
    """Lines and fields of the rows below the first one; None where there is something wrong."""
    found, began = [], 1
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for fields in reader:
            if fields:
                found.append((began, fields))
            began = reader.line_num + 1
    except csv.Error:
        return None
    return found[1:] if all(len(fields) == len(NAMES) for _, fields in found) else None


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.tuples(cells, cells, cells), max_size=5),
    raw=st.text(alphabet='ab,"\r\n\0\ufeff', max_size=30),
    quoting=st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_columns_are_those_of_csv(
    tmp_path: Path, size: int, rows: list[tuple[str, str, str]], raw: str, quoting: Any, end: str
) -> None:
    text = io.StringIO(newline="")
    csv.writer(text, quoting=quoting, lineterminator=end).writerows([NAMES, *rows])
    written, path = text.getvalue(), tmp_path / "t.csv"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "CHUNK", size)
        for content in (written, written.rstrip("\r\n"), written + raw):
            path.write_bytes(content.encode())
            found, expected = read_plain_csv(path, NAMES, NAMES), by_csv(content)
            if found is not None:
                columns = [found.columns[name].to_pylist() for name in NAMES]
                read = zip(found.lines.tolist(), map(list, zip(*columns, strict=True)), strict=True)
                assert list(read) == expected
            elif content != written + raw:
                assert any("\r" in cell or "\ufeff" in cell for row in rows for cell in row)


def images(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).touch()


def found_in(root: Path) -> Any:
    """Pairs of a folder, or what is wrong with it."""
    try:
        source: Any = FolderPairs(root, shares=(1.0, 0.0, 0.0)).pairs_of("train")
        return [(one.id, one.where, one.before, one.after, one.captions) for one in source.records]
    except IDCError as error:
        return str(error)


paths = st.sampled_from(["a.png", "s/b.png", "s//b.png", "./a.png", "s/./b.png", "s/c.d.png", ".e", "f.", "s\\b.png"])
labels = st.sampled_from(["", "x", " y "])
texts = st.sampled_from(["", "one", " one\t two  three ", '["one", "two"]', "[", "one\u2003two\x1cthree\x85", '["'])
COLUMNS = ("before", "after", "id", "captions", "caption_10", "caption_2", "split", "change_type")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.tuples(paths, paths, labels, texts, texts, texts, st.sampled_from(["", "Training"]), labels)),
    left_out=st.sets(st.sampled_from(COLUMNS[2:])),
)
def test_columns_and_rows_are_judged_alike(tmp_path: Path, rows: list[tuple[str, ...]], left_out: set[str]) -> None:
    images(tmp_path, "a.png", "s/b.png", "s/c.d.png", ".e", "f.")
    kept = [place for place, name in enumerate(COLUMNS) if name not in left_out]
    with open(tmp_path / "pairs.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([[row[place] for place in kept] for row in (COLUMNS, *rows)])
    at_once = found_in(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair_folders, "_add_columns", lambda *arguments: False)
        assert found_in(tmp_path) == at_once


def test_files_whose_names_are_not_text_are_passed_over(tmp_path: Path) -> None:
    images(tmp_path, "a.png")
    with open(os.fsencode(tmp_path) + b"/caf\xe9.png", "wb"):
        pass
    (tmp_path / "pairs.csv").write_text("before,after,caption\na.png,a.png,one\na.png,caf\ufffd.png,two\n")
    assert "1 images of the train split are not there: " in found_in(tmp_path)


@pytest.mark.parametrize("form", ["named", "no ids", "in quotes", "a caption a row", "a caption a column"])
def test_no_function_is_called_for_each_pair(tmp_path: Path, form: str) -> None:
    """A million pairs then take a million times what one takes: nothing grows that is made once per pair."""

    def calls(pairs: int) -> int:
        root = tmp_path / str(pairs)
        root.mkdir()
        images(root, "a.png")
        columns = {"before": "a.png", "after": "a.png", "id": "{0}", "caption": "the cube number {0} moved"}
        columns["split"] = "train"
        if form == "no ids":
            columns |= {"after": "s/{0}.png"}
            images(root, *(f"s/{number}.png" for number in range(pairs)))
            del columns["id"]
        if form == "a caption a row":
            columns["id"] = "{1}"
        if form == "a caption a column":
            columns["caption_1"] = columns["caption_2"] = columns.pop("caption")
        quoting = csv.QUOTE_ALL if form == "in quotes" else csv.QUOTE_MINIMAL
        with open(root / "pairs.csv", "w", newline="") as file:
            csv.writer(file, quoting=quoting).writerows(
                [list(columns), *([text.format(n, n // 5) for text in columns.values()] for n in range(pairs))]
            )
        count = 0

        def counted(frame: Any, event: str, argument: Any) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        data = FolderPairs(root)
        sys.setprofile(counted)
        try:
            data.pairs_of("train")
        finally:
            sys.setprofile(None)
        return count

    calls(10)  # modules are imported
    more = (calls(4000) - calls(1000)) / 3000
    assert more < (8 if form == "no ids" else 0.1), f"{more:.1f} calls a pair"  # files of a folder are listed
