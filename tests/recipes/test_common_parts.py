"""Settings that recipes share are written once, in ``recipes/_base``."""

from __future__ import annotations

import itertools
import re
from functools import cache
from pathlib import Path

import pytest

from lightning_idc import data
from lightning_idc.cli.recipes.compose import Recipe, axes, load
from lightning_idc.data.benchmark import Benchmark
from lightning_idc.metrics.protocols import PROTOCOLS

RECIPES = sorted((Path(__file__).resolve().parents[2] / "recipes").rglob("*.yaml"))


def lines_in_common() -> tuple[int, int]:
    """Number of lines, without comments, in blocks of eight lines that another recipe also has; and of all lines."""
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


@cache
def recipes_of(path: Path) -> list[Recipe]:
    """The recipe with the first entry of every matrix axis, and with each other entry of one axis at a time."""
    matrix = axes(path)
    first = {axis: next(iter(entries)) for axis, entries in matrix.items()}
    every = [first, *({**first, axis: entry} for axis, entries in matrix.items() for entry in entries)]
    return [load(path, choice) for choice in every]


@pytest.mark.parametrize("path", [path for path in RECIPES if path.parent.name != "_base"], ids=lambda path: path.stem)
def test_a_captioner_is_tested_with_weights_that_its_stage_names(path: Path) -> None:
    """Weights are published ones or of an earlier stage with the same class; a zero-shot row once used ADPO's."""
    for recipe in recipes_of(path):
        fitted: dict[str, str] = {}
        for stage in recipe.stages:
            model = stage.options.get("model") or {}
            if stage.run == "fit":
                fitted[stage.name] = model["class"]
            checkpoint = stage.options.get("ckpt_path") or ""
            if earlier := re.fullmatch(r"\$\{stages\.(\w+)\.best\}", checkpoint):
                assert fitted[earlier[1]] == model["class"], f"{stage.name} tests the class that {earlier[1]} trained"
            elif not checkpoint and stage.run in ("test", "validate"):
                assert model.get("model") or model.get("init_from"), f"{stage.name} has no weights"


UNPUBLISHED = {"SyntheticPairs", "FolderPairs", "ImgDiff"}
"""Data whose test pairs are in no published table of captions."""


@pytest.mark.parametrize("path", [path for path in RECIPES if path.parent.name == "paper"], ids=lambda path: path.stem)
def test_recipes_of_papers_score_as_the_published_tables(path: Path) -> None:
    for recipe in recipes_of(path):
        for stage in recipe.stages:
            if stage.run != "test":
                continue
            results = stage.options["trainer"]["callbacks"]["ShowResults"]
            assert "protocol" not in results, "the benchmark names it"
            options = {**stage.options["data"], "root": None}
            kind = getattr(data, options.pop("class").rpartition(".")[2])
            if kind.__name__ not in UNPUBLISHED:
                assert "protocol" in vars(kind), f"{kind.__name__} names the protocol of its tables"
            if kind is data.SpotTheDiff:
                assert kind(**options).expected("test").pairs == 1270 and "empty_references" not in options


def test_benchmarks_name_a_protocol() -> None:
    """Benchmarks with captions from people or templates have one, so their rows are comparable with published ones."""
    classes = [getattr(data, name) for name in data.__all__]
    benchmarks = {kind for kind in classes if isinstance(kind, type) and issubclass(kind, Benchmark)}
    named = {kind.__name__: vars(kind)["protocol"] for kind in benchmarks if "protocol" in vars(kind)}
    assert set(named.values()) <= PROTOCOLS.keys()
    assert set(named) >= {"CLEVRChange", "CLEVRDC", "SpotTheDiff", "ImageEditingRequest", "LEVIRCC", "OmniDiff"}


def test_the_protocol_of_spot_the_diff_follows_its_grouping() -> None:
    assert data.SpotTheDiff().empty_references == "keep", "published: 1,270 pairs, seven of them without a sentence"
    for grouping in ("grouped", "entry", "multi"):
        assert data.SpotTheDiff(grouping=grouping).protocol == f"spot-the-diff/{grouping}"
