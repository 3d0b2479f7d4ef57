"""Whole recipes on a user's own folder, as typed on the command line: mixed sizes, several seeds, other data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.own_pairs import own_pairs
from helpers.timm_weights import hub_repository, timm_state

import lightning_idc
from lightning_idc.cli import main
from lightning_idc.cli.recipes.compose import load
from lightning_idc.cli.recipes.overrides import check_recipe, override, smoke_keys, use_data
from lightning_idc.cli.recipes.shipped import shipped
from lightning_idc.utils.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder of a user, with pairs in ``mine``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIGHTNING_IDC_CACHE", str(tmp_path / "cache"))
    own_pairs(tmp_path / "mine")
    return tmp_path


def result(stage: Path) -> dict[str, Any]:
    return json.loads((stage / "metrics.json").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_a_seed_of_own_pairs_and_going_on_with_a_second(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    half = ["--trainer.precision", "bf16-mixed"]
    keys = ["own_pairs", "--smoke", "--data.root", "mine", "--data.limit", "40", *half]
    assert main(["run", *keys, "--seeds", "1", "--out", "out"]) == 0
    capfd.readouterr()
    assert main(["run", *keys, "--seeds", "1,2", "--resume", "out"]) == 0
    printed = capfd.readouterr().out
    assert printed.count("already done") == 2, "train and test of the first seed"
    first, second = (result(here / "out" / f"seed_{seed}" / "test") for seed in (1, 2))
    assert (first["seed"], second["seed"]) == (1, 2)
    assert first["data"] == second["data"] and first["data"]["name"] == "FolderPairs"
    row = next(line for line in printed.splitlines() if "±" in line)
    assert "mean ± standard deviation over seeds" in printed and row
    board = (here / "out" / "leaderboard.md").read_text(encoding="utf-8")
    assert "N/test/metrics.json |" in board and (here / "out" / "leaderboard.tex").is_file()
    lines = (here / "out" / "seed_1" / "test" / "predictions.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    assert len(records) == first["counts"]["all"]["pairs"] > 1
    assert all(0 <= record["change_score"] <= 1 for record in records), "the data says which sentences mean no change"
    assert (here / "out" / "seed_1" / "test" / "report.html").stat().st_size > 10_000


MAKE_PAIRS = ("img_diff", "implicit_change", "similar_pairs", "web", "web_pages")
"""Recipes that only make pairs, or that train on the pairs they make."""
CHECKED = ("clevr", "dpo_own", "m3diff", "noise_masking")
"""Recipes of captioners that quickstart, adpo_vlm and namc already train on other data; only their keys are checked."""
SMALL = sorted(
    name
    for name, path in shipped().items()
    if path.parent.name == "recipes" and name not in (*MAKE_PAIRS, "own_pairs", "own_boards", "own_encoder")
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pairs in ``mine`` and one cache of rendered pairs for all recipes."""
    root = tmp_path_factory.mktemp("user")
    own_pairs(root / "mine", 24)
    return root


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SMALL if name not in CHECKED])
def test_any_recipe_takes_other_data(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Stages that need a renderer keep its data; all others use the folder, without scene facts."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("LIGHTNING_IDC_CACHE", str(folder / "cache"))
    data = ["--data", "folder", "--data.root", "mine", "--data.num_workers", "0"]
    if name == "deeppcb":  # its backbone is pretrained on the boards
        data += ["--stages.pretrain_backbone.data.root", str(request.getfixturevalue("shared") / "realdata/deeppcb")]
    assert main(["run", name, "--smoke", *data, "--out", name]) == 0
    tests = [stage.name for stage in load(shipped()[name]).stages if stage.run == "test"]
    assert tests
    for stage in tests:
        assert result(folder / name / stage)["data"]["name"] == "FolderPairs"


@pytest.mark.parametrize("name", CHECKED)
def test_keys_of_other_data_fit_the_recipe(name: str) -> None:
    recipe = load(shipped()[name])
    replaced = use_data(recipe, "folder")
    override(recipe, {**smoke_keys(recipe, {"data.root": "mine"}), "data.root": "mine"}, replaced)
    check_recipe(recipe)
    tests = [stage.config["data"] for stage in recipe.stages if stage.run == "test"]
    assert tests and all(data["class_path"].endswith("FolderPairs") for data in tests)


def test_stages_that_need_a_renderer_keep_its_data() -> None:
    recipe = load(ROOT / "recipes" / "quickstart.yaml")
    replaced = use_data(recipe, "folder")
    override(recipe, {"data.root": "mine"}, replaced)
    check_recipe(recipe)
    data = {stage.name: stage.config["data"] for stage in recipe.stages}
    assert data["pretrain_backbone"]["class_path"].endswith("SyntheticCells"), "only the renderer knows the cells"
    for name in ("train", "test"):
        assert data[name]["class_path"].endswith("FolderPairs") and data[name]["init_args"]["root"] == "mine"
        assert data[name]["init_args"]["image_size"] == 64, "as the backbone has seen them"


def test_the_root_of_other_data_is_not_that_of_the_boards() -> None:
    recipe = load(ROOT / "recipes" / "deeppcb.yaml")
    override(recipe, {"data.root": "mine"}, use_data(recipe, "folder"))
    roots = {stage.name: stage.config["data"]["init_args"]["root"] for stage in recipe.stages}
    assert roots == {"pretrain_backbone": "data/deeppcb", "train": "mine", "test": "mine"}


def test_a_recipe_that_only_makes_pairs_refuses_other_data() -> None:
    with pytest.raises(ConfigError, match=r"no stage of similar_pairs\.yaml trains or tests on pairs"):
        use_data(load(ROOT / "recipes" / "similar_pairs.yaml"), "folder")


def test_the_smoke_size_runs_on_the_data_of_the_command_line() -> None:
    recipe = load(ROOT / "recipes" / "dpo_own.yaml")
    assert smoke_keys(recipe, {"data.annotations": "mine.jsonl"}) == {
        key: value for key, value in recipe.about["smoke"].items() if key != "data"
    }
    assert smoke_keys(recipe, {}) == recipe.about["smoke"]


@pytest.mark.slow
def test_own_pairs_start_from_a_timm_model(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One option names the weights; the backbone keeps them, its features are cached, and the captioner loads again."""
    state, _ = timm_state("test_resnet")
    name = hub_repository(here, monkeypatch, state)
    keys = ["--data.root", "mine", "--model.backbone", "test_resnet", "--model.backbone_weights", name]
    assert main(["run", "own_encoder", "--smoke", *keys, "--out", "out"]) == 0
    assert list((here / "cache" / "features").iterdir())
    trained = lightning_idc.load(here / "out" / "train" / "checkpoints" / "best.ckpt").built_net.backbone.state_dict()
    assert torch.equal(trained["model.conv1.0.weight"], state["conv1.0.weight"])


@pytest.mark.slow
def test_boards_start_from_the_shipped_captioner(here: Path) -> None:
    assert main(["run", "own_boards", "--smoke", "--data.root", "mine", "--out", "out"]) == 0
    check = result(here / "out" / "test")["baseline_check"]
    assert "constant caption" in check["over"] and "identical images" in check["over"]


def test_pairs_that_are_handed_on_are_the_other_data_too() -> None:
    """ProCap's frames are made from `EveryPair`, which wraps the pairs that the later stages train on."""
    recipe = load(ROOT / "recipes" / "procap.yaml")
    use_data(recipe, "folder")
    override(recipe, {**recipe.about["smoke"], "data.root": "mine", "data.limit": 7})
    check_recipe(recipe)
    data = {stage.name: stage.config["data"] for stage in recipe.stages}
    handed_on = data["frames"]["init_args"]["data"]
    assert data["frames"]["class_path"].endswith("EveryPair") and handed_on["class_path"].endswith("FolderPairs")
    for name in ("root", "limit", "image_size"):
        assert handed_on["init_args"][name] == data["procedure"]["init_args"][name], name


def test_a_key_of_the_data_reaches_the_pairs_that_are_handed_on() -> None:
    recipe = load(ROOT / "recipes" / "procap.yaml")
    override(recipe, {"data.train_pairs": 9, "data.batch_size": 3})
    frames, procedure = (recipe.stages[number].config["data"]["init_args"] for number in (1, 2))
    assert frames["data"]["init_args"]["train_pairs"] == procedure["train_pairs"] == 9
    assert frames["batch_size"] == 3 and "batch_size" not in frames["data"]["init_args"], "its own argument comes first"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "foldr"], "there is no data of this name; did you mean 'folder'?"),
        (["--data", "folder", "--data.train_pairs", "3"], "data has no argument 'train_pairs'"),
        (["--seeds", "1,1"], "expected different whole numbers, as in --seeds 1,2,3"),
        (["--seeds", "one"], "expected different whole numbers"),
        (["--seeds", "1,2", "--seed_everything", "3"], "leave --seed_everything out"),
    ],
)
def test_what_is_asked_wrongly_is_said(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", "own_pairs", "--smoke", *arguments]) == 1
    assert message in capsys.readouterr().err and not (tmp_path / "runs").exists()
