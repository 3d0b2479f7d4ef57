"""Every ablation of M3Diff's recipe trains and tests a tiny model on files in the layout of the six data sets."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))

from helpers.paper import best
from helpers.paper import run as run_recipe
from helpers.stages_here import run_stages_of_two_devices
from helpers.vlm_tiny import captioner
from test_benchmarks import (
    birds_to_words,
    clevr_change,
    clevr_dc,
    image_editing_request,
    omnidiff,
    spot_the_diff,
)

from lightning_idc.cli.recipes.compose import choices, load, resolve
from lightning_idc.cli.stage import PairCLI

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "paper" / "m3diff.yaml"
PUBLIC = {"spot_the_diff", "image_editing_request", "birds_to_words", "clevr_change", "clevr_dc"}
OMNIDIFF = {"omnidiff_real", "omnidiff_render"}
FOLDERS = {
    "OmniDiff": "omnidiff",
    "SpotTheDiff": "spot_the_diff",
    "ImageEditingRequest": "image_editing_request",
    "BirdsToWords": "birds_to_words",
    "CLEVRChange": "clevr_change",
    "CLEVRDC": "clevr_dc",
}
ABLATIONS: dict[str, tuple[set[str], dict[str, Any] | None]] = {
    "full": (PUBLIC | OMNIDIFF, {}),
    "without_mdp": (PUBLIC | OMNIDIFF, None),
    "without_omnidiff": (PUBLIC, {}),
    "without_both": (PUBLIC, None),
    "as_printed": (PUBLIC | OMNIDIFF, {"as_printed": True}),
}
"""Data sets that each ablation trains on, and options of its MDP."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("m3diff")
    for make in (birds_to_words, clevr_change, clevr_dc, image_editing_request, omnidiff, spot_the_diff):
        make(root / make.__name__)
    (root / "omnidiff" / "render").mkdir()
    for file in (root / "omnidiff" / "real").glob("*.json"):
        (root / "omnidiff" / "render" / file.name).write_text(file.read_text())
    captioner("llava_onevision").save_model(root / "model")
    return root


def folder_of(world: Path, class_path: str) -> str:
    """Folder with the files of a data module."""
    return str(world / FOLDERS[class_path.rpartition(".")[2]])


def small(config: dict[str, Any], world: Path, out: Path) -> dict[str, Any]:
    """Configuration of a stage, adapted to one process, the tiny model and the tiny data sets."""
    trainer, model, data = config["trainer"], config["model"], config["data"]
    trainer |= {"accelerator": "cpu", "devices": 1, "logger": False, "default_root_dir": str(out)}
    trainer |= {"enable_progress_bar": False, "enable_model_summary": False}
    trainer.pop("strategy", None)
    if "accumulate_grad_batches" in trainer:
        trainer["accumulate_grad_batches"] = 2
    if "model" in model.get("init_args", {}):
        model["init_args"] |= {"model": str(world / "model"), "max_length": 4}
    parts = data["init_args"].get("parts")
    if parts is not None:
        data["init_args"]["epoch_pairs"] = 16
    for part in parts.values() if parts else [data]:
        part.setdefault("init_args", {}).update(root=folder_of(world, part["class_path"]), official=False)
    data["init_args"] |= {"image_size": 32, "num_workers": 0}
    return config


def run(verb: str, config: dict[str, Any]) -> PairCLI:
    cli = PairCLI(verb, json.loads(json.dumps(config)))
    cli.run()
    return cli


@pytest.mark.slow
def test_the_matrix_has_every_row_of_the_tables() -> None:
    found = {(choice["model"], choice["ablation"]) for choice in choices(RECIPE, {})}
    models = ("llava_onevision", "qwen2_5_vl", "internvl3")
    assert found == {(model, ablation) for model in models for ablation in (*ABLATIONS, "zero_shot")}
    for name, (parts, mdp) in ABLATIONS.items():
        stage = load(RECIPE, {"model": "qwen2_5_vl", "ablation": name}).stages[0]
        data = stage.config["data"]["init_args"]
        # table 9: train and validation splits, with one draw per caption
        assert set(data["parts"]) == set(data["weights"]) == parts
        assert data["epoch_pairs"] == sum(data["weights"].values()) and data["train_splits"] == ["train", "val"]
        if parts & OMNIDIFF:
            assert sum(data["weights"][part] for part in OMNIDIFF) == 28_056
        callbacks = {entry["class_path"].rpartition(".")[2]: entry for entry in stage.config["trainer"]["callbacks"]}
        assert ("MDPAdapter" in callbacks) == (mdp is not None)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ABLATIONS if name != "full"])
def test_each_ablation_trains_and_tests(name: str, world: Path, tmp_path: Path) -> None:
    fit, test, *_ = load(RECIPE, {"model": "llava_onevision", "ablation": name}).stages
    cli = run("fit", small(fit.config, world, tmp_path))
    trainer, model = cli.trainer, cli.model
    assert trainer.global_step == 2 and list(model.adapters) == [
        "lora",
        *(["mdp"] if ABLATIONS[name][1] is not None else []),
    ]
    if ABLATIONS[name][1] is not None:
        assert model.adapters["mdp"].mdp.as_printed == (name == "as_printed")
    best = trainer.checkpoint_callback.best_model_path
    assert "step=2" in best, "what is tested is the end of the epoch, not the last multiple of 200 steps"
    cli = run("test", small(resolve(test.config, tmp_path, {"tune": best}), world, tmp_path / "test"))
    assert [record["id"] for record in cli.model.predictions] == ["test-1"]
    assert list(cli.model.adapters) == list(model.adapters)


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.timeout(400)
def test_the_recipe_trains_on_two_devices(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its eight devices are reduced to two, and those of its tests to one."""
    monkeypatch.chdir(tmp_path)
    two_processes = run_stages_of_two_devices(monkeypatch)
    chosen = {"model": "llava_onevision", "ablation": "full"}
    keys: dict[str, Any] = {f"matrix.{axis}": entry for axis, entry in chosen.items()}
    keys |= {"model.model": str(world / "model"), "model.max_length": 4, "data.num_workers": 0, "data.image_size": 32}
    keys |= {"trainer.accelerator": "cpu", "trainer.devices": 2, "data.official": False}
    for stage in load(RECIPE, chosen).stages:
        data = stage.config["data"]["init_args"]
        prefix = f"stages.{stage.name}.data"
        if "parts" in data:
            parts = {f"parts.{name}.root": part["class_path"] for name, part in data["parts"].items()}
            keys |= {f"{prefix}.{key}": folder_of(world, kind) for key, kind in parts.items()}
            keys |= {f"{prefix}.parts.{name}.official": False for name in data["parts"]}
            keys[f"{prefix}.epoch_pairs"] = 16
        else:
            keys[f"{prefix}.root"] = folder_of(world, stage.config["data"]["class_path"])
            keys |= {
                f"stages.{stage.name}.trainer.{key}": value for key, value in (("devices", 1), ("strategy", "auto"))
            }
    keys["stages.tune.trainer.accumulate_grad_batches"] = 1
    run_recipe("m3diff", tmp_path / "out", **keys)
    assert two_processes == ["tune"]
    tuned = best(tmp_path / "out", "tune")
    assert "step=2" in tuned.name, "what is tested is the end of the epoch: 16 pairs in batches of 4 on two devices"
    trained = torch.load(tuned, weights_only=True)["state_dict"]
    assert {part for part in ("lora", "mdp") if any(part in name for name in trained)} == {"lora", "mdp"}
    for stage in load(RECIPE, chosen).stages[1:]:
        scores = json.loads((tmp_path / "out" / stage.name / "metrics.json").read_text())["summary"]
        assert scores["pairs"]["all"] > 0 and 0 <= scores["rows"]["all"]["CIDEr-D"] <= 1000


@pytest.mark.slow
def test_zero_shot_tests_the_model_as_it_is(world: Path, tmp_path: Path) -> None:
    stages = load(RECIPE, {"model": "qwen2_5_vl", "ablation": "zero_shot"}).stages
    assert [stage.name for stage in stages] == ["test_real", "test_render", "test_image_editing_request"]
    cli = run("test", small(stages[-1].config, world, tmp_path))
    assert cli.model.predictions and not list(cli.model.adapters)
