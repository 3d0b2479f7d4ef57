"""recipes/paper/adpo.yaml, adpo_retriever.yaml and grpo_vlm.yaml on tiny files of the authors' structure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.vlm_tiny import architecture
from PIL import Image

import lightning_idc.cli.training
from lightning_idc.cli import main, stages

ROOT = Path(__file__).resolve().parents[2]

PAPER = ROOT / "recipes" / "paper"
CLIP: dict[str, Any] = {
    "embed_dim": 16,
    "quick_gelu": True,
    "vision_cfg": {"image_size": 8, "patch_size": 4, "width": 32, "head_width": 16, "layers": 2},
    "text_cfg": {"context_length": 12, "width": 32, "heads": 2, "layers": 1},
}
HERE = {"trainer.accelerator": "cpu", "trainer.devices": 1, "data.num_workers": 0, "data.official": False}
SHORT = {**HERE, "trainer.strategy": "auto", "trainer.precision": "32-true", "data.batch_size": 3}


def image(path: Path, width: int, height: int, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def image_editing_request(root: Path) -> None:
    """Photographs of any size; an edit may be a crop, which is smaller."""
    for split, count in (("train", 6), ("valid", 2), ("test", 2)):
        rows = []
        for n in range(count):
            name = f"{split}{n}"
            image(root / "images" / f"{name}_0.jpg", 40 + 8 * n, 48, n)
            image(root / "images" / f"{name}_1.jpg", 40 + 8 * n - 4 * (n == 1), 48, n + 50)
            rows.append({"uid": name, "img0": f"{name}_0.jpg", "img1": f"{name}_1.jpg", "sents": [f"crop number {n}"]})
        (root / f"{split}.json").write_text(json.dumps(rows))


def spot_the_diff(root: Path) -> None:
    """Frames of 1024 x 577 to 580 pixels in the data set; the same aspect here."""
    (root / "annotations").mkdir(parents=True)
    for start, split, count in ((0, "train", 6), (100, "val", 2), (200, "test", 2)):
        rows = []
        for n in range(start, start + count):
            for ending in ("", "_2"):
                image(root / "resized_images" / f"{n}{ending}.png", 64, 36 + n % 4, n + len(ending))
            rows.append({"img_id": str(n), "sentences": [f"person {n} left", "there are no differences"]})
        (root / "annotations" / f"{split}.json").write_text(json.dumps(rows))


def clevr_change(root: Path) -> None:
    numbers = {"train": [0, 1, 2], "val": [3], "test": [4]}
    every = [number for part in numbers.values() for number in part]
    for n in every:
        for side, (folder, label) in enumerate(
            (("images", "default"), ("sc_images", "semantic"), ("nsc_images", "nonsemantic"))
        ):
            image(root / folder / f"CLEVR_{label}_{n:06d}.png", 48, 32, 3 * n + side)
    names = [f"CLEVR_default_{n:06d}.png" for n in every]
    for file, said in (("change", "cube {} moved"), ("no_change", "nothing was modified")):
        captions = {name: [said.format(place)] for place, name in enumerate(names)}
        (root / f"{file}_captions.json").write_text(json.dumps(captions))
    (root / "splits.json").write_text(json.dumps(numbers))
    kinds: dict[str, list[str]] = {kind: [] for kind in ("color", "material", "add", "drop", "move")}
    kinds["move"] = [f"{n:06d}.png" for n in every]
    (root / "type_mapping.json").write_text(json.dumps(kinds))


MAKERS = {
    "image_editing_request": image_editing_request,
    "spot_the_diff": spot_the_diff,
    "clevr_change": clevr_change,
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stages run in this process: one of its own costs seconds."""
    monkeypatch.chdir(tmp_path)

    def run_here(verb: str, config: Path, result: Path, *unused: Any) -> int:
        monkeypatch.setenv(lightning_idc.cli.training.RESULT, str(result))
        return main([verb, "--config", str(config)])

    monkeypatch.setattr(stages, "run_process", run_here)
    return tmp_path


def run(recipe: str, out: Path, **keys: Any) -> None:
    given = [part for key, value in keys.items() for part in (f"--{key}", json.dumps(value))]
    assert main(["run", str(PAPER / f"{recipe}.yaml"), "--run_dir", str(out), *given]) == 0


def weights(path: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(path, weights_only=True)["state_dict"]
    return found


def best(out: Path, stage: str) -> Path:
    return out / json.loads((out / stage / "stage.json").read_text())["best"]


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
