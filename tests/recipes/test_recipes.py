"""Every recipe: those of recipes/ are run at their smoke size, those of recipes/paper/ are checked key by key."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from lightning_idc.cli import main
from lightning_idc.cli.recipes.compose import choices, load
from lightning_idc.cli.recipes.overrides import check_recipe, override
from lightning_idc.cli.recipes.shipped import shipped
from lightning_idc.synthesis.web.browser import Chromium
from lightning_idc.utils.files import default_cache_dir

ROOT = Path(__file__).resolve().parents[2]
RECIPES = list(shipped().values())
OWN = ("own_pairs", "own_boards", "own_encoder")  # need a folder of pairs; test_own_pairs.py makes one and runs them
RUN = [path for path in RECIPES if "paper" not in path.relative_to(ROOT).parts and path.stem not in OWN]
REAL_DATA = {"deeppcb": "realdata/deeppcb"}
"""Recipes that need data which cannot be rendered, and its path in the shared folder."""
PACKAGES = {"web_pages": ("playwright",), "web": ("playwright",)}
"""Recipes that need packages which nothing else requires."""


def name(path: Path) -> str:
    return path.relative_to(ROOT / "recipes").with_suffix("").as_posix()


def test_the_quick_start_is_there() -> None:
    assert "quickstart" in map(name, RUN)


KEYS = [pytest.param(path, marks=[pytest.mark.slow] if path.parent.name == "paper" else []) for path in RECIPES]
"""All recipes; those of the papers are slow, since each expands to dozens of configurations."""


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
"""The option that GPU users add first."""
IN_HALF = ("clip4idc", "dpo_own", "noise_masking")
"""Recipes that run in bf16-mixed, which triples their time on a CPU; ``test_gpu.py`` trains each captioner in it."""


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Cache of all recipes that run in this process; METEOR's index takes seconds to build and is the user's."""
    folder = tmp_path_factory.mktemp("cache")
    index = default_cache_dir() / "meteor"
    index.mkdir(parents=True, exist_ok=True)
    (folder / "meteor").symlink_to(index)
    return folder


@pytest.mark.dist
@pytest.mark.timeout(500)
def test_the_quick_start_runs_in_a_process_of_its_own(cache: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lightning_idc", "run", str(ROOT / "recipes" / "quickstart.yaml")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LIGHTNING_IDC_CACHE": str(cache)}
    options = ["--smoke", "--out", "out"]
    done = subprocess.run([*command, *options], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    check_run(ROOT / "recipes" / "quickstart.yaml", tmp_path, half=False)


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize("path", RUN, ids=name)
def test_it_runs_at_its_smoke_size(
    path: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    half = name(path) in IN_HALF
    arguments = list(HALF) if half else []
    missing = [package for package in PACKAGES.get(name(path), ()) if find_spec(package) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed")
    if name(path) in ("web_pages", "web") and Chromium().requirements():
        pytest.skip("; ".join(Chromium().requirements()))
    if name(path) in REAL_DATA:
        root = request.getfixturevalue("shared") / REAL_DATA[name(path)]
        if not root.is_dir():
            pytest.skip(f"{root.name} is not in the shared folder")
        arguments += ["--data.root", str(root)]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIGHTNING_IDC_CACHE", str(cache))
    # the stages of a smoke run also run in this process
    assert main(["run", str(path), "--smoke", "--out", "out", *arguments]) == 0
    check_run(path, tmp_path, half=half)


def check_run(path: Path, folder: Path, half: bool) -> None:
    """Check that a run has the outputs of each stage and no half-written files."""
    for stage in load(path).stages:
        home = folder / "out" / stage.name
        record = json.loads((home / "stage.json").read_text(encoding="utf-8"))
        if stage.run == "fit":
            # it is in the logger's folder if the recipe has a logger
            (config_file,) = home.rglob("config.yaml")
            config = config_file.read_text(encoding="utf-8")
            assert not half or "precision: bf16-mixed" in config, "a stage that trains does so as asked"
            assert (folder / "out" / record["best"]).is_file()
        if stage.run == "test":
            assert any(metric.startswith("test/") for metric in record["metrics"])
            metrics = json.loads((home / "metrics.json").read_text(encoding="utf-8"))
            summary = metrics["summary"]
            assert summary["pairs"]["all"] > 0 and 0 <= summary["rows"]["all"]["CIDEr-D"] <= 1000
            assert metrics["counts"]["all"]["pairs"] == summary["pairs"]["all"] and metrics["protocol"]["hash"]
            assert (home / "report.html").stat().st_size > 10_000
    assert not list(folder.rglob("*.partial")), "something half-written was left behind"
