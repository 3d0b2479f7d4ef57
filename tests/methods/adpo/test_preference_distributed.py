"""Preference and policy optimisation on two processes: DPO and GRPO equal one process; ADPO's replicas remain equal."""

from __future__ import annotations

import json
import re
import shutil
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.paper import CLIP
from helpers.processes import launch
from helpers.training import tiny_retriever

from lightning_idc.cli.recipes.compose import Stage, choices, load
from lightning_idc.models.distributed import shard
from lightning_idc.models.strategies import ShardedStrategy
from lightning_idc.utils.errors import ConfigError

HERE = Path(__file__).parent
PAPER = HERE.parents[2] / "recipes" / "paper"


def run_outcome(kind: str, out: Path) -> tuple[dict[str, dict[str, torch.Tensor]], list[list[float]], dict[str, str]]:
    """Return the weights of each run, the weight sums of both replicas of the last run, and UnchangedControl's file."""
    launch(HERE / "two_processes_preference.py", kind, out, processes=1 if kind == "one" else 2)
    weights = {
        name: torch.load(out / f"{kind}{name}.ckpt", weights_only=True)["state_dict"]
        for name in ("", "-rewarded", "-adapters")
    }
    control = json.loads((out / "unchanged.json").read_text(encoding="utf-8"))
    return weights, torch.load(out / f"{kind}.pt", weights_only=True), control


def pairs_of(name: str, weights: dict[str, torch.Tensor]) -> dict[str, str]:
    """Map the names of the trained weights to the names of the same weights in the reference."""
    if name == "-adapters":
        return {key.replace(".reference", ".default"): key for key in weights if ".reference" in key}
    addon = {"": "preference", "-rewarded": "policy"}[name]
    twins = {key: f"aux_addons.{addon}.reference.twin.{key}" for key in weights}
    return {key: twin for key, twin in twins.items() if twin in weights}


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Folder and results of the run in one process."""
    folder = tmp_path_factory.mktemp("one")
    return folder, run_outcome("one", folder)


@pytest.mark.dist
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_two_processes_equal_one(kind: str, one: tuple[Path, Any], tmp_path: Path) -> None:
    first, (expected, _, controls) = one
    shutil.copy(first / "sft.ckpt", tmp_path)
    actual, replicas, control = run_outcome(kind, tmp_path)
    for name, weights in expected.items():
        two, pairs = actual[name], pairs_of(name, weights)
        assert two.keys() == weights.keys()
        for key, value in weights.items():
            torch.testing.assert_close(two[key], value, rtol=1e-4, atol=5e-6, msg=f"{name}: {key}")
        moved = max(float((weights[key] - weights[reference]).abs().max()) for key, reference in pairs.items())
        assert moved > 1e-2, f"{name}: the policy left the reference"
    assert len(replicas) == 2 and replicas[0] == replicas[1]
    assert len(controls) == 7 and control == controls, "UnchangedControl covers the pairs of all processes"


@cache
def paper_stages() -> list[tuple[str, Stage]]:
    """Return the recipe name and the stage of every entry of every recipe in recipes/paper."""
    paths = sorted(PAPER.glob("*.yaml"))
    return [(path.stem, stage) for path in paths for choice in choices(path, {}) for stage in load(path, choice).stages]


def strategies() -> dict[str, list[str]]:
    """Map each strategy block in recipes/paper to the recipes that contain it."""
    stages: dict[str, list[str]] = {}
    for recipe, stage in paper_stages():
        block = (stage.config.get("trainer") or {}).get("strategy")
        if isinstance(block, dict):
            stages.setdefault(json.dumps(block, sort_keys=True), []).append(recipe)
    return stages


@pytest.mark.dist
def test_paper_recipe_strategies_shard_over_all_processes(tmp_path: Path) -> None:
    blocks = strategies()
    assert blocks, "some recipes of recipes/paper shard"
    for block, recipes in blocks.items():
        launch(HERE / "two_processes_recipe.py", block, tmp_path, processes=2)
        first, second = json.loads((tmp_path / "found.json").read_text())
        assert first["replica"] == second["replica"], f"the replicas of {recipes} went apart"
        assert first["own"] + second["own"] == first["every"] < 2 * first["own"] * 1.3, f"{recipes} is not sharded"
        # the moving average with decay 0.5 follows the policy and lags behind
        assert 0 < first["moved"] < 0.1


def preference_blocks() -> dict[str, list[str]]:
    """Map the trainer blocks of preference stages that use several GPUs in recipes/paper to the names of their stages.

    Of several blocks that differ only in the number of candidates or the temperature (the points of Figure 4), one is
    tested.
    """
    stages: dict[str, tuple[str, list[str]]] = {}
    for recipe, stage in paper_stages():
        trainer = stage.config.get("trainer") or {}
        names = [str(one.get("class_path")) for one in trainer.get("callbacks") or []]
        several = isinstance(trainer.get("strategy"), dict)
        if several and any(name.endswith("PreferenceOptimization") for name in names):
            block = {key: trainer.get(key) for key in ("strategy", "gradient_clip_val", "callbacks")}
            key = re.sub(r'"(candidates|temperature)": [0-9.]+', "", json.dumps(block, sort_keys=True))
            stages.setdefault(key, (json.dumps(block), []))[1].append(f"{recipe}, {stage.name}")
    return dict(stages.values())


@pytest.mark.dist
def test_paper_recipe_stages_on_two_processes_equal_one(tmp_path: Path) -> None:
    blocks = preference_blocks()
    assert {"adpo, dpo", "adpo, adpo"} <= {stage for stages in blocks.values() for stage in stages}
    encoded_blocks = json.dumps([json.loads(block) for block in blocks])
    pytest.importorskip("open_clip")
    tiny_retriever(CLIP, tmp_path)  # with a scalar weight, for images of one size
    for processes in (1, 2):
        launch(HERE / "two_processes_stage.py", encoded_blocks, str(processes), tmp_path, processes=processes)
    for index, stages in enumerate(blocks.values()):
        one, two = (torch.load(tmp_path / f"{index}_{n}.pt", weights_only=True) for n in (1, 2))
        first, second = two["held"]
        assert first["callbacks"] == (2 if any(stage.endswith(", adpo") for stage in stages) else 1)
        assert first["own"] + second["own"] == first["every"] and first["own"] < 0.65 * first["every"], stages
        assert first["replica"] == second["replica"], f"the replicas of {stages} went apart"
        moved = max(float((one["weights"][name] - start).abs().max()) for name, start in one["start"].items())
        assert moved > 1e-2, "the policy left the reference"
        for name, value in one["weights"].items():
            torch.testing.assert_close(two["weights"][name], value, rtol=1e-5, atol=1e-5, msg=f"{stages}: {name}")


def test_rejects_tensor_parallelism_and_zero_timeout() -> None:
    class Mesh:
        mesh_dim_names = ("data_parallel", "tensor_parallel")

        def __getitem__(self, name: str) -> Any:
            return SimpleNamespace(size=lambda: 1 if name == "data_parallel" else 2)

    with pytest.raises(ConfigError, match="ShardedStrategy"):
        shard(torch.nn.Linear(2, 2), Mesh(), ())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="timeout_minutes is 0"):
        ShardedStrategy(timeout_minutes=0)
