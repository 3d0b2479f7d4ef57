"""Generated tables and plots of the documentation equal the output of the scripts in benchmarks/studies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.harness import filled
from benchmarks.studies import results_table, scale_plan

PAGES: dict[Path, Callable[[], dict[str, str]]] = {
    results_table.PAGE: lambda: {results_table.NAME: results_table.sections()},
    results_table.README: lambda: {results_table.NAME: results_table.summary()},
    scale_plan.DOC: scale_plan.tables,
}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_tables_of_a_page_are_those_of_its_script(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert filled(text, PAGES[path]()) == text, "run the script in benchmarks/studies with --write"


def test_a_decided_difference_has_an_interval_over_three_trainings_that_excludes_0() -> None:
    outcomes = [outcome for method in results_table.METHODS for outcome in results_table.outcomes(method)]
    decided = [outcome for outcome in outcomes if outcome.is_decided]
    assert 0 < len(decided) <= 25
    for outcome in decided:
        low, high = outcome.gain["interval"]
        assert len(outcome.gain["each_seed"]) >= 3 and low * high > 0, outcome
    by_title = {outcome.comparison.title: outcome.reading for outcome in outcomes}
    assert by_title["plain layers of equal size over none"] == "not decided"


def test_plots_are_those_of_the_results() -> None:
    for path, text in results_table.plots().items():
        assert path.read_text(encoding="utf-8") == text, "run benchmarks.studies.results_table --write"
