"""recipes/paper/adpo.yaml, adpo_retriever.yaml and grpo_vlm.yaml on tiny files of the authors' structure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from helpers.paper import CLIP, MAKERS, best, clevr_change, run, run_stages_here
from helpers.vlm_tiny import architecture

HERE = {"trainer.accelerator": "cpu", "trainer.devices": 1, "data.num_workers": 0, "data.official": False}
SHORT = {**HERE, "trainer.strategy": "auto", "trainer.precision": "32-true", "data.batch_size": 3}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return run_stages_here(tmp_path, monkeypatch)


def weights(path: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(path, weights_only=True)["state_dict"]
    return found


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_every_benchmark_goes_through_retriever_and_adpo(here: Path) -> None:
    pytest.importorskip("open_clip")
    policy = {"model.model": None, "model.architecture": architecture("qwen2_5_vl"), "model.max_length": 4}
    sft: Path | None = None
    for dataset, make in MAKERS.items():
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
        if sft is None:
            steps = {"trainer.max_steps": 1, "trainer.accumulate_grad_batches": 1}
            run("adpo", here / "sft", **named, **{"matrix.method": "sft"}, **SHORT, **policy, **steps)
            sft = best(here / "sft", "sft")
        start = {"matrix.method": "adpo", "model.init_from": str(sft), "trainer.max_epochs": 1}
        encoder = {"stages.adpo.trainer.callbacks.2.init_args.encoder": str(best(retriever, "adapt"))}
        run("adpo", here / f"adpo_{dataset}", **named, **start, **SHORT, **policy, **encoder)
        trained, before = weights(best(here / f"adpo_{dataset}", "adpo")), weights(sft)
        twin = "aux_addons.preference.reference.twin."
        moved = [name for name, value in before.items() if not torch.equal(value, trained[name])]
        assert moved and all(torch.equal(trained[twin + name], before[name]) for name in moved)
        met = json.loads((here / f"adpo_{dataset}" / "adpo" / "negatives.json").read_text())
        assert len(met) == 6 and all(row["positive"] != row["negative"] for row in met.values())


@pytest.mark.slow
@pytest.mark.parametrize("reward", ["cider", "facts"])
def test_a_vision_language_model_is_trained_by_rewards_from_the_adapters_of_sft(reward: str, here: Path) -> None:
    pytest.importorskip("peft")
    clevr_change(here)
    policy = {"model.model": None, "model.architecture": architecture("qwen2_5_vl"), "model.max_length": 6}
    short = {"trainer.accelerator": "cpu", "trainer.precision": "32-true", "trainer.max_epochs": 1}
    files = {"data.root": str(here), "data.official": False, "data.num_workers": 0}
    rendered = {f"data.{name}_pairs": count for name, count in (("train", 8), ("val", 2), ("test", 4))}
    data = files if reward == "cider" else {**rendered, "data.render_size": 32, "data.cache_dir": str(here)}
    run(
        "grpo_vlm", here / "out", **{"matrix.reward": reward}, **short, **policy, **data, **{"model.optimizer.lr": 0.01}
    )
    sft, found = weights(best(here / "out", "sft")), weights(best(here / "out", "grpo"))
    adapters = [name for name in found if ".default" in name]
    moved = [name for name in adapters if not torch.equal(found[name], sft[name])]
    assert adapters and moved, "the policy was trained on"
    for name in adapters:
        assert torch.equal(found[name.replace(".default", ".reference")], sft[name]), "what it is held to is SFT"
    rows = json.loads((here / "out" / "test_grpo" / "comparison.json").read_text())
    assert list(rows) == ["SFT", "SFT+", "GRPO"]
    assert set(rows["GRPO"]["compared"]["floors"]) == {"constant", "dealt", "after := before"}
