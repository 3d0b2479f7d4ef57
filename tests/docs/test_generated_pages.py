"""Tables of pages are what the scripts of benchmarks/studies make of the results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.harness import filled
from benchmarks.studies import combinations_page, results_table, scale_plan

PAGES: dict[Path, Callable[[], dict[str, str]]] = {
    results_table.PAGE: lambda: {results_table.NAME: results_table.table()},
    results_table.README: lambda: {results_table.NAME: results_table.summary()},
    combinations_page.PAGE: combinations_page.tables,
    scale_plan.DOC: scale_plan.tables,
}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_tables_of_a_page_are_those_of_its_script(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert filled(text, PAGES[path]()) == text, "run the script in benchmarks/studies with --write"


def test_a_claim_has_its_interval_and_its_baseline() -> None:
    rows = results_table.lines(results_table.RESULTS)
    assert [row[0] for row in rows][: len(results_table.COMPARISONS)] == [one.what for one in results_table.COMPARISONS]
    for row in rows:
        assert len(row) == len(results_table.COLUMNS) and all(row), row
        if row[-1] in ("higher", "lower"):
            assert "(" in row[4] and row[5][0].isdigit(), row
