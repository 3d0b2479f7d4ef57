"""The verb run: run the stages of a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def run(
    recipe: str,
    *,
    smoke: bool = False,
    seeds: str | None = None,
    out: Path | None = None,
    resume: Path | None = None,
    **keys: Any,
) -> int:
    """Run the stages of a recipe: lightning run quickstart --model.width 64

    A recipe is a YAML file, or a name of `lightning-idc list recipes`. It is code: it may name any class. Further
    options are its keys:
      --data.batch_size 16 --trainer.max_epochs 2    a key of all stages
      --stages.NAME.KEY VALUE                        a key of one stage
      --data NAME                                    other pairs: --data folder --data.root my_pairs
      --matrix.AXIS ENTRY                            one entry of the recipe's matrix; all of them otherwise
      --engine ray --engine.workers 4                backend for data synthesis: ray, process, or array (a task of
                                                     SLURM), and arguments of RayPool, InProcess, ArrayTask
      --import MODULE                                your module with classes, installed or in this folder; or
                                                     `recipe: {import: [MODULE]}`

    Args:
        recipe: YAML file or name.
        smoke: run at the size of tests, which takes less than a minute and learns nothing.
        seeds: seeds such as 1,2,3: one run per seed, then a table of mean, standard deviation and paired significance.
        out: folder of the results; runs/RECIPE/DATE_TIME by default.
        resume: folder of an interrupted run to continue with its keys; further keys override these.
    """
    from lightning_idc.cli.recipes.entries import run_recipe

    return run_recipe(recipe, smoke=smoke, seeds=seeds, out=out, resume=resume, keys=keys)
