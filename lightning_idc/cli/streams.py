"""stream: stages of data making that go on at the same time, each as soon as the one before it has made a shard."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning_idc.cli.recipe import Stage
from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.files import atomic_write

OUTCOME = ".outcome.json"
"""What the process of a stage leaves for the run; the folder is also that of its callbacks, with files of theirs."""

_HELP = """usage: lightning-idc stream STAGE.yaml STAGE.yaml ...

Runs stages of data making with Ray, each as soon as the one before it has made a shard. `lightning run RECIPE
--engine ray` does so with all that follow each other in a recipe."""


def together(stages: Sequence[Stage]) -> list[Stage]:
    """The first stage, and those behind it that can stream from it: Ray makes their records, and each reads the last.

    Args:
        stages: of a recipe, from the one that is due.
    """
    found = list(stages[:1])
    for stage in stages[1:]:
        if not (_on_ray(found[-1]) and _on_ray(stage) and _data(stage).get("source") == _data(found[-1]).get("target")):
            break
        found.append(stage)
    return found


def _data(stage: Stage) -> dict[str, Any]:
    return (stage.config.get("data") or {}).get("init_args") or {}


def _on_ray(stage: Stage) -> bool:
    launcher = _data(stage).get("launcher") or {}
    path = launcher.get("class_path", "") if isinstance(launcher, dict) else launcher
    return stage.run == "predict" and str(path).rpartition(".")[2] == "RayPool"


def run(given: list[str]) -> int:
    """The verb `stream`."""
    files = [Path(name) for name in given[1:]]
    if not files or given[1] in ("-h", "--help"):
        print(_HELP, file=sys.stdout if files else sys.stderr)
        return 0 if files else 2
    from lightning_idc.cli.configuration import gather
    from lightning_idc.cli.processes import RESULT, end_with_parent
    from lightning_idc.cli.training import PairCLI
    from lightning_idc.synthesis.pipeline import Records
    from lightning_idc.synthesis.ray import RayPool

    if RESULT in os.environ:
        end_with_parent()
    steps = []
    for file in files:
        cli = PairCLI("predict", gather(["--config", str(file)]), [file])
        cli.build()
        data = cli.datamodule
        if not isinstance(data, Records) or not isinstance(data.launcher, RayPool):
            raise ConfigError(f"{file} makes no records with Ray; expected Records with the launcher RayPool")
        steps.append((cli.model, data.job, data.launcher))
    for model, job, launcher in steps:
        launcher.launch(model, job)
    for file in files:
        atomic_write(file.with_name(OUTCOME), json.dumps({"best": "", "metrics": {}}))
    return 0
