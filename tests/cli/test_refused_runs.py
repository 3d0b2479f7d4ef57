"""A refused run leaves nothing behind, and removes no files of other runs."""

from __future__ import annotations

from pathlib import Path

from lightning_idc.cli.recipes.compose import load
from lightning_idc.cli.recipes.plan import REFUSED, Plan
from lightning_idc.cli.recipes.ranks import ranks_of_job
from lightning_idc.cli.recipes.run import Run

RECIPE = """
recipe: {title: Toy}
base: {model: PairTransformer, data: SyntheticPairs}
stages:
  train: {run: fit}
"""


def test_a_refused_run_removes_its_folder_and_no_other(tmp_path: Path) -> None:
    recipe = tmp_path / "toy.yaml"
    recipe.write_text(RECIPE)
    others = tmp_path / "out" / "other"

    def refuse(plan: Plan, followed: bool) -> int:
        others.mkdir(parents=True)
        (others / "best.ckpt").write_text("of another run")
        return REFUSED

    folder = tmp_path / "out" / "mine" / "deep"
    assert Run(load(recipe, {}), folder, {}, refuse, ranks_of_job()).go() == 1
    assert not (tmp_path / "out" / "mine").exists() and (others / "best.ckpt").is_file()
