"""Pairs in the columns of a table. Oracle: the files that the test wrote."""

from __future__ import annotations

import csv
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from lightning_idc.data.benchmarks.folder import FolderPairs
from lightning_idc.utils.errors import DatasetNotFoundError


def images(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).touch()


def test_files_with_undecodable_names_are_ignored(tmp_path: Path) -> None:
    images(tmp_path, "a.png")
    with open(os.fsencode(tmp_path) + b"/caf\xe9.png", "wb"):
        pass
    (tmp_path / "pairs.csv").write_text(
        "before,after,caption\na.png,a.png,one\na.png,caf\ufffd.png,two\n", encoding="utf-8"
    )
    with pytest.raises(DatasetNotFoundError, match="1 images of the train split are missing: "):
        FolderPairs(tmp_path, shares=(1.0, 0.0, 0.0)).pairs_of("train")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["named", "no ids", "in quotes", "a caption a row", "a caption a column"])
def test_table_reading_is_vectorised(tmp_path: Path, form: str) -> None:
    """Reading a table makes fewer than 0.1 Python calls per pair, or 8 if the files of a folder are listed."""

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

    calls(10)  # warm-up: imports modules
    more = (calls(4000) - calls(1000)) / 3000
    assert more < (8 if form == "no ids" else 0.1), f"{more:.1f} calls a pair"  # files of a folder are listed
