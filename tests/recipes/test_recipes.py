"""Every recipe, at its smallest, from the command line to its last stage."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_recipe_runs_to_its_end(recipe: Path, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "lightning_idc",
        "run",
        str(recipe),
        "--smallest",
        "--run_dir",
        str(tmp_path / "run"),
    ]
    if recipe.stem == "deeppcb":
        root = ROOT.parent / "shared" / "realdata" / "deeppcb"
        if not root.is_dir():
            pytest.skip("the DeepPCB pairs are not beside this checkout")
        command += ["--data.root", str(root)]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "LIGHTNING_IDC_CACHE": str(tmp_path / "cache"),
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    scores = json.loads((tmp_path / "run" / "test" / "scores.json").read_text())
    assert scores["pairs"]["all"] > 0
    assert 0 <= scores["rows"]["all"]["CIDEr-D"] <= 1000
    assert (tmp_path / "run" / "test" / "contact_sheet.png").stat().st_size > 1000


def test_there_is_a_quick_start() -> None:
    assert ROOT / "recipes" / "quickstart.yaml" in RECIPES
