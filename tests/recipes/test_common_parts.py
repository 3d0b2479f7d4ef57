"""What recipes have in common stands once, in ``recipes/_base``."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from lightning_idc.cli.recipes.compose import axes, load

RECIPES = sorted((Path(__file__).resolve().parents[2] / "recipes").rglob("*.yaml"))


def lines_in_common() -> tuple[int, int]:
    """Lines, without comments, that stand in a block of eight lines of another recipe; all lines."""
    lines = {
        path: [line for line in path.read_text(encoding="utf-8").splitlines() if line.split("#")[0].strip()]
        for path in RECIPES
    }
    blocks: dict[tuple[str, ...], set[Path]] = {}
    for path, recipe_lines in lines.items():
        for start in range(len(recipe_lines) - 7):
            blocks.setdefault(tuple(recipe_lines[start : start + 8]), set()).add(path)
    shared = 0
    for recipe_lines in lines.values():
        starts = [
            start for start in range(len(recipe_lines) - 7) if len(blocks[tuple(recipe_lines[start : start + 8])]) > 1
        ]
        shared += len(set(itertools.chain.from_iterable(range(start, start + 8) for start in starts)))
    return shared, sum(map(len, lines.values()))


def test_what_recipes_share_stands_once() -> None:
    shared, total = lines_in_common()
    assert total > 1000 and shared / total < 0.1, f"{shared} of {total} lines"


def stages_of(path: Path) -> list[dict[str, Any]]:
    """Configurations of all stages, each axis of the matrix in turn."""
    matrix = axes(path)
    first = {axis: next(iter(entries)) for axis, entries in matrix.items()}
    every = [first, *({**first, axis: entry} for axis, entries in matrix.items() for entry in entries)]
    return [stage.options for choice in every for stage in load(path, choice).stages if stage.run == "test"]


@pytest.mark.parametrize("path", [path for path in RECIPES if path.parent.name == "paper"], ids=lambda path: path.stem)
def test_recipes_of_papers_score_as_the_published_tables(path: Path) -> None:
    """Spot-the-Diff is published on 1,270 pairs, seven of which have an empty sentence only."""
    for options in stages_of(path):
        data = options.get("data") or {}
        results = (options["trainer"].get("callbacks") or {}).get("ShowResults") or {}
        assert "protocol" not in results, "the benchmark names it"
        if str(data.get("class", "")).endswith("SpotTheDiff"):
            assert data["empty_references"] == "keep"


def test_benchmarks_name_a_protocol() -> None:
    from lightning_idc import data
    from lightning_idc.metrics.protocols import PROTOCOLS

    named = {name: getattr(data, name).protocol for name in ("CLEVRChange", "SpotTheDiff", "LEVIRCC", "OmniDiff")}
    assert set(named.values()) <= PROTOCOLS.keys() and "coco" not in named.values()
