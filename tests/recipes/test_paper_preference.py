"""recipes/paper/adpo.yaml, adpo_retriever.yaml and grpo_vlm.yaml on tiny files in the authors' layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from helpers.paper import CLIP, MAKERS, PAPER, best, clevr_change, run, run_stages_here
from helpers.policy_server import PolicyServer
from helpers.servers import serving
from helpers.vlm_tiny import architecture

from lightning_idc.cli.recipes.compose import choices, load
from lightning_idc.models.vlm.module import VLMCaptioner

HERE = {"trainer.accelerator": "cpu", "trainer.devices": 1, "data.num_workers": 0, "data.official": False}
SHORT = {**HERE, "trainer.strategy": "auto", "trainer.precision": "32-true", "data.batch_size": 3}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return run_stages_here(tmp_path, monkeypatch)


def weights(path: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(path, weights_only=True)["state_dict"]
    return found


@pytest.mark.slow
def test_the_zero_shot_row_has_no_weights_of_the_run() -> None:
    """The zero-shot stage comes after the stages that train, and once used ADPO's checkpoint."""
    for choice in choices(PAPER / "adpo.yaml", {"method": "table"}):
        stages = {stage.name: stage.config for stage in load(PAPER / "adpo.yaml", choice).stages}
        assert "ckpt_path" not in stages["zero_shot"]
        assert stages["test_adpo"]["ckpt_path"] == "${stages.adpo.best}"


def preference_options(config: dict[str, Any]) -> dict[str, Any]:
    """Arguments of the preference callbacks of a stage, by class name."""
    callbacks = config["trainer"]["callbacks"]
    return {callback["class_path"].rpartition(".")[2]: callback.get("init_args", {}) for callback in callbacks}


def test_the_first_loss_is_that_of_the_paper() -> None:
    """Eq. 5 to 7 on every comparison: nothing is anchored, and candidates are captions of random other pairs."""
    stages = {stage.name: stage.config for stage in load(PAPER / "adpo.yaml", {"method": "table"}).stages}
    for name in ("dpo", "adpo"):
        options = preference_options(stages[name])["PreferenceOptimization"]
        assert options["anchor"] == 0.0 and options["negatives"]["init_args"]["weighting"] == "frequency"
    assert preference_options(stages["adpo"])["AdversarialRetriever"]["weighting"] == "frequency"


@pytest.mark.slow
def test_figure_4_varies_candidates_and_temperature_under_the_loss_of_the_paper() -> None:
    table = {stage.name: stage for stage in load(PAPER / "adpo.yaml", {"method": "adpo"}).stages}
    recipes = {
        (entry["candidates"], entry["temperature"]): load(PAPER / "adpo_figure4.yaml", entry)
        for entry in choices(PAPER / "adpo_figure4.yaml", {"dataset": "clevr_change"})
    }
    assert {count for count, _ in recipes} == {"16", "64", "128", "256"}, "the four of section 5.4"
    for (count, temperature), recipe in recipes.items():
        retriever = preference_options(recipe.stages[0].config)["AdversarialRetriever"]
        assert (retriever["candidates"], retriever["temperature"]) == (int(count), float(temperature))
    # the setting of Tables 1 to 3 is one point of the figure
    assert recipes["128", "2"].stages[0].config == table["adpo"].config


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_every_benchmark_goes_through_retriever_and_adpo(here: Path) -> None:
    pytest.importorskip("open_clip")
    policy = {"model.model": None, "model.architecture": architecture("qwen2_5_vl"), "model.max_length": 4}
    sft: Path | None = None
    for dataset, make in reversed(MAKERS.items()):
        root = here / dataset
        root.mkdir()
        make(root)
        named = {"matrix.dataset": dataset, "data.root": str(root)}
        clip = {"model.clip": CLIP, "model.pretrained": None, "model.intra_layers": 1, "model.vocabulary": None}
        retriever = here / f"retriever_{dataset}"
        run(
            "adpo_retriever", retriever, **named, **HERE, **clip, **{"data.image_size": [8, 8], "trainer.max_epochs": 1}
        )
        if dataset == "clevr_change":
            words = torch.load(best(retriever, "adapt"), weights_only=True)["hyper_parameters"]["vocabulary"]
            assert {"nothing", "modified", "cube"} <= set(words), "it saw pairs with a change and pairs without"
        encoder = {"encoder": str(best(retriever, "adapt")), **named, **SHORT, **policy}
        if dataset == "image_editing_request":
            assert sft is not None
            alone(here, sft, encoder)
        else:
            sft = table(here, dataset, encoder)


def table(here: Path, dataset: str, given: dict[str, Any]) -> Path:
    """Run SFT, DPO, ADPO and the table of all, with all weights or LoRA; returns the checkpoint of SFT."""
    lora = dataset == "spot_the_diff"
    keys = {name: value for name, value in given.items() if name != "encoder"}
    callback = "stages.adpo.trainer.callbacks.AdversarialRetriever.encoder"
    short = {"stages.sft.trainer.max_steps": 2, "trainer.accumulate_grad_batches": 1, "trainer.max_epochs": 1}
    axes = {"matrix.method": "table", "matrix.gpus": "one_lora" if lora else "two", "matrix.loss": "paper"}
    out = here / f"table_{dataset}"
    rate = {"model.optimizer.lr": 0.01}
    run("adpo", out, **keys, **axes, **short, **rate, **{callback: given["encoder"]})
    sft, dpo, adpo = (weights(best(out, stage)) for stage in ("sft", "dpo", "adpo"))
    for trained in (dpo, adpo):
        moved = [name for name, value in sft.items() if name in trained and not torch.equal(value, trained[name])]
        assert moved and all(".default" in name for name in moved) is lora
        for name in moved:
            held = name.replace(".default", ".reference") if lora else f"aux_addons.preference.reference.twin.{name}"
            assert torch.equal(trained[held], sft[name]), "what it is compared with is SFT"
    zero_shot = yaml.safe_load((out / "zero_shot" / "stage.yaml").read_text())
    assert "ckpt_path" not in zero_shot, "the published model, without anything that was learned here"
    rows = json.loads((out / "test_adpo" / "comparison.json").read_text())
    assert list(rows) == ["zero-shot", "SFT", "DPO", "ADPO"]
    assert "difference" in json.dumps(rows["ADPO"]["compared"])
    return best(out, "sft")


def alone(here: Path, sft: Path, given: dict[str, Any]) -> None:
    """Run ADPO from a checkpoint, as the method adpo does."""
    keys = {name: value for name, value in given.items() if name != "encoder"}
    start = {
        "matrix.method": "adpo",
        "matrix.gpus": "two",
        "matrix.loss": "held",
        "model.init_from": str(sft),
        "trainer.max_epochs": 1,
    }
    encoder = {"stages.adpo.trainer.callbacks.AdversarialRetriever.encoder": given["encoder"]}
    run("adpo", here / "adpo", **keys, **start, **encoder)
    trained, before = weights(best(here / "adpo", "adpo")), weights(sft)
    twin = "aux_addons.preference.reference.twin."
    moved = [name for name, value in before.items() if not torch.equal(value, trained[name])]
    assert moved and all(torch.equal(trained[twin + name], before[name]) for name in moved)
    (negatives,) = (here / "adpo" / "adpo").rglob("negatives.json")
    met = json.loads(negatives.read_text())
    assert len(met) == 6 and all(row["positive"] != row["negative"] for row in met.values())


def grpo_vlm(here: Path, out: str, reward: str, **more: Any) -> Path:
    """Run the recipe on tiny stand-ins, with additional keys."""
    policy = {"model.model": None, "model.architecture": architecture("qwen2_5_vl"), "model.max_length": 6}
    short = {"trainer.accelerator": "cpu", "trainer.precision": "32-true", "trainer.max_epochs": 1}
    files = {"data.root": str(here), "data.official": False, "data.num_workers": 0}
    rendered = {f"data.{name}_pairs": count for name, count in (("train", 8), ("val", 2), ("test", 4))}
    data = files if reward == "cider" else {**rendered, "data.render_size": 32, "data.cache_dir": str(here)}
    # with its default eps, Adam would turn rounding of gradients of 1e-9 into steps of 1e-5
    optimizer = {"model.optimizer.lr": 0.01, "model.optimizer.eps": 1e-6}
    keys = {"matrix.reward": reward, "matrix.rollouts": "own", **optimizer, **more}
    run("grpo_vlm", here / out, **short, **policy, **data, **keys)
    return here / out


@pytest.mark.slow
@pytest.mark.parametrize("reward", ["cider", "facts"])
def test_a_vision_language_model_is_trained_by_rewards_from_the_adapters_of_sft(reward: str, here: Path) -> None:
    pytest.importorskip("peft")
    clevr_change(here)
    out = grpo_vlm(here, "out", reward)
    sft, found = weights(best(out, "sft")), weights(best(out, "grpo"))
    adapters = [name for name in found if ".default" in name]
    moved = [name for name in adapters if not torch.equal(found[name], sft[name])]
    assert adapters and moved, "the policy was trained on"
    for name in adapters:
        assert torch.equal(found[name.replace(".default", ".reference")], sft[name]), "what it is held to is SFT"
    rows = json.loads((out / "test_grpo" / "comparison.json").read_text())
    assert list(rows) == ["SFT", "SFT+", "GRPO"]
    assert set(rows["GRPO"]["compared"]["baselines"]) == {"constant caption", "shuffled captions", "identical images"}
    if reward == "cider":
        assert_a_server_draws_the_same(here, out, found)


def assert_a_server_draws_the_same(here: Path, own: Path, expected: dict[str, torch.Tensor]) -> None:
    """Training on captions from a server that loads base and adapters from files equals training on in-process ones."""
    sft = str(best(own, "sft"))

    def opened(request: dict[str, Any]) -> VLMCaptioner:
        assert request["lora_name"] == "policy" and request["load_inplace"] is True
        model = VLMCaptioner.load_from_checkpoint(sft, map_location="cpu")
        model.adapters.installed()["lora"].load(model.built_net, Path(request["lora_path"]))
        return model

    server = PolicyServer(opened)
    with serving(server.http) as address:
        callback = "stages.grpo.trainer.callbacks.ServerRollouts"
        urls = {
            f"{callback}.endpoint.url": f"{address}/v1",
            f"{callback}.weights.url": f"{address}/load",
        }
        out = grpo_vlm(here, "served", "cider", **{"matrix.rollouts": "server", **urls})
    found = weights(best(out, "grpo"))
    assert len(server.requests) >= 3 and len(server.loaded) >= 2
    start = weights(sft)
    for name, value in expected.items():
        before = start.get(name, value)
        # Adam's first step is as large for a gradient that is only rounding as for any other, so single weights
        # may differ by a fraction of a step; the update of a whole tensor may not
        difference, moved = (found[name] - value).norm(), (value - before).norm()
        assert difference <= 0.02 * moved, f"{name}: {difference:.1e} apart after an update of {moved:.1e}"
