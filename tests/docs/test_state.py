"""The README's table of methods is what benchmarks/state.py makes of benchmarks/results, and no row is left out."""

from __future__ import annotations

import json
import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from _pages import filled
from _reading import over_seeds, reading_of
from state import COLUMNS, COMPARISONS, MIXED, NAME, README, RESULTS, below, gain_of, lines, table

READINGS = {"higher", "lower", "not decided", "below the floor"}


def study(scores: dict[str, list[float]], control: str | None = None, low: float = 1.0) -> dict[str, Any]:
    """A study as a file of results holds it, its floors far below or, with ``low`` under 0, not.

    Args:
        scores: of the seeds by row.
        control: row of ``over_control``.
        low: lower end of what each row has over its floor.
    """
    names = list(scores)
    each = [
        {
            name: {"score": of[seed], "facts": {}, "over_floors": {"constant": {"low": low}}}
            for name, of in scores.items()
        }
        for seed in range(len(scores[names[0]]))
    ]
    summary: dict[str, Any] = {
        name: {
            "CIDEr-D": [sum(of) / len(of), 0.0],
            "facts": {},
            "floors": {"constant": [5.0, 0.0], "dealt": [7.0, 0.0]},
        }
        for name, of in scores.items()
    }
    for first, second in pairwise(names):
        gain = over_seeds([b - a for a, b in zip(scores[first], scores[second], strict=True)])
        summary[second]["over_before"] = {"row": first, **gain, "pairs": [gain["mean"] - 1, gain["mean"] + 1]}
    found = {"seeds": list(range(len(each))), "test_pairs": 300, "summary": summary, "each_seed": each}
    return found | ({"control": control, "over_control": {}} if control else {})


def test_the_table_of_readme_is_what_the_script_makes_of_the_results() -> None:
    text = README.read_text(encoding="utf-8")
    assert filled(text, {NAME: table()}) == text, "run benchmarks/state.py --write"


def test_every_comparison_has_a_row_with_all_columns() -> None:
    rows = lines(RESULTS)
    assert [row[0] for row in rows][: len(COMPARISONS)] == [one.what for one in COMPARISONS]
    assert len({row[0] for row in rows}) == len(rows), "each comparison has a name of its own"
    for row in rows:
        assert len(row) == len(COLUMNS) and all(row), row
        assert row[-1] in READINGS
        if row[-1] in ("higher", "lower"):
            assert "(" in row[4] and row[5][0].isdigit(), "a claim has its interval and its floor beside it"


def test_readings_are_those_that_the_studies_kept() -> None:
    """What is computed here from the intervals is what ``_study.py`` wrote when it knew every caption."""
    seen = 0
    for path in sorted(RESULTS.glob("*.json")):
        worlds = json.loads(path.read_text(encoding="utf-8")).get("worlds", {})
        for world in worlds.values() if isinstance(worlds, dict) else []:
            for name, row in world.get("summary", {}).items():
                if "over_before" in row:
                    seen += 1
                    gain = row["over_before"]
                    assert reading_of(gain, below(name, world), world["test_pairs"]) == gain["reading"], (path, name)
    assert seen > 20


@pytest.mark.parametrize(
    "content", [None, {"scores": {"none": {}}}, {"worlds": [{"name": "x"}]}, {"worlds": {"vague": 1}}]
)
def test_a_row_whose_study_is_not_there_says_so(tmp_path: Path, content: dict[str, Any] | None) -> None:
    """Files that are absent, or of another shape."""
    for one in COMPARISONS if content is not None else ():
        (tmp_path / f"{one.file}.json").write_text(json.dumps(content), encoding="utf-8")
    rows = lines(tmp_path)
    assert [row[0] for row in rows] == [one.what for one in COMPARISONS]
    assert all(row[2] == "not measured" and row[-1] == "not decided" for row in rows)


def test_combinations_have_rows_once_their_file_is_there(tmp_path: Path) -> None:
    scores = {"plain": [10.0, 11, 12, 10, 11], "noise masking": [20.0, 21, 22, 20, 21], "both": [9.0, 12, 11, 12, 9]}
    worlds = {"rendered": study(scores, control="plain"), "low": study(scores, low=-1.0)}
    (tmp_path / f"{MIXED}.json").write_text(json.dumps({"worlds": worlds}), encoding="utf-8")
    rows = {row[0]: row for row in lines(tmp_path)[len(COMPARISONS) :]}
    assert list(rows) == [
        *("noise masking over plain: rendered", "both over plain: rendered"),
        *("noise masking over plain: low", "both over noise masking: low"),
    ]
    found = rows["noise masking over plain: rendered"]
    assert found[2:4] == ["10.8 to 20.8 (+10.0)", "5; 300"] and found[5:] == ["7 dealt", "higher"]
    assert rows["both over plain: rendered"][4].startswith("-; ("), "no interval over pairs was kept for these two"
    assert rows["both over plain: rendered"][-1] == "not decided"
    assert rows["noise masking over plain: low"][-1] == "below the floor"


def test_few_seeds_on_few_pairs_decide_nothing() -> None:
    gain = {**over_seeds([10.0, 10.1, 10.2]), "pairs": [9.0, 11.0]}
    assert reading_of(gain, False, 300) == "not decided"
    assert reading_of(gain, False, 2000) == "higher"
    assert (
        reading_of({**over_seeds([-10.0, -10.1, -10.2, -10.1, -10.0]), "pairs": [-11.0, -9.0]}, False, 300) == "lower"
    )
    assert reading_of({**over_seeds([10.0] * 5), "pairs": [-1.0, 21.0]}, False, 300) == "not decided"
    assert reading_of({**over_seeds([10.0]), "pairs": [9.0, 11.0]}, False, 2000) == "higher"
    assert reading_of(gain, True, 2000) == "below the floor"


@pytest.mark.parametrize(("seeds", "quantile"), [(2, 12.706), (5, 2.776), (10, 2.262), (11, 2.228), (31, 2.042)])
def test_seeds_have_students_interval_however_many_they_are(seeds: int, quantile: float) -> None:
    differences = [2.2 + 30.0 * (-1) ** seed for seed in range(seeds)]
    gain = over_seeds(differences)
    half = quantile * statistics.stdev(differences) / seeds**0.5
    assert gain["interval"] == pytest.approx([gain["mean"] - half, gain["mean"] + half], rel=1e-3)
    assert reading_of({**gain, "pairs": [0.5, 4.0]}, False, 2000) == "not decided"


def test_the_difference_is_that_of_the_study_or_of_its_seeds() -> None:
    world = study({"a": [1.0, 2.0], "b": [3.0, 5.0], "c": [4.0, 4.0]})
    assert gain_of(world, "b", "a")["pairs"] == [1.5, 3.5]
    alone = gain_of(world, "c", "a")
    assert alone["pairs"] is None and alone["each_seed"] == [3.0, 2.0]


def test_a_page_without_the_marks_is_named() -> None:
    assert filled("<!-- a -->\nold\n<!-- /a -->\nend", {"a": "new\n"}) == "<!-- a -->\nnew\n<!-- /a -->\nend"
    with pytest.raises(SystemExit, match="<!-- b -->"):
        filled("<!-- a -->\n<!-- /a -->", {"b": "new"})
