"""docs/papers.md lists every numbered equation with its function and a test, all of which exist."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
COUNTS = {"NAMC": 18, "M3Diff": 8, "ADPO": 7, "ProCap": 20}
ROW = re.compile(
    r"^\| (?P<paper>\w+) Eq\. (?P<number>\d+) \| .+ \| "
    r"`(?P<module>[\w.]+):(?P<symbol>[\w.]+)` \| `(?P<test>[\w/.]+)` \|$"
)
ROWS = [
    match
    for line in (ROOT / "docs" / "papers.md").read_text(encoding="utf-8").splitlines()
    if (match := ROW.match(line))
]


def test_every_numbered_equation_has_a_row() -> None:
    assert len(ROWS) == 53
    for paper, count in COUNTS.items():
        assert [int(row["number"]) for row in ROWS if row["paper"] == paper] == list(range(1, count + 1)), paper


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['paper']}-{row['number']}")
def test_the_function_cites_its_equation(row: re.Match[str]) -> None:
    result: Any = importlib.import_module(row["module"])
    for name in row["symbol"].split("."):
        result = getattr(result, name)
    cited = inspect.getdoc(result) or ""
    assert f"{row['paper']} Eq. {row['number']}" in [line.strip() for line in cited.splitlines()]
    assert (ROOT / row["test"]).is_file()


@pytest.mark.slow
def test_the_first_grep_finds_each_equation() -> None:
    files = {path: path.read_text(encoding="utf-8") for path in (ROOT / "lightning_idc").rglob("*.py")}
    for row in ROWS:
        line = re.compile(rf"^\s*{row['paper']} Eq\. {row['number']}$", re.MULTILINE)
        homes = [path for path, text in files.items() if line.search(text)]
        expected = ROOT / (row["module"].replace(".", "/") + ".py")
        assert homes == [expected], f"{row['paper']} Eq. {row['number']} stands in {homes}"
