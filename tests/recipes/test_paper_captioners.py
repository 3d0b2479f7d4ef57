"""recipes/paper of CLIP4IDC, ProCap and NAMC, from imports to the tested captioner, on files with the real layout."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.paper import CLIP, MAKERS, best, run, run_stages_here
from helpers.processes import forking_python
from helpers.stages_here import run_stages_of_two_devices
from PIL import Image
from safetensors.torch import load_file

from lightning_idc.cli.convert import convert
from lightning_idc.methods.namc.reconstruction_quality import COMPARISONS

HERE = {"trainer.accelerator": "cpu", "trainer.devices": 1, "trainer.strategy": "auto", "data.num_workers": 0}
SIDE = 64
"""Side of an image in pixels: 4 x 4 cells of the VQGAN."""
WIDE = {**CLIP, "embed_dim": 32, "vision_cfg": {**CLIP["vision_cfg"], "image_size": SIDE, "patch_size": 16}}
SMALL_CLIP = {"model.clip": WIDE, "model.pretrained": None, "model.intra_layers": 1, "model.vocabulary": None}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return run_stages_here(tmp_path, monkeypatch)


@pytest.fixture
def files(here: Path, shared: Path) -> dict[str, Path]:
    """Files that the recipes require, as their authors publish them; the VQGAN is converted by the command."""
    parity = shared / "parity"
    if not (parity / "vfiformer").is_dir():
        pytest.skip("parity/vfiformer is not in the shared folder")
    vqgan = {name: value.float() for name, value in load_file(parity / "vqgan_256" / "weights.safetensors").items()}
    torch.save({"state_dict": vqgan, "epoch": 3, "callbacks": {}}, here / "last.ckpt")
    convert("vqgan", Path("last.ckpt"), out=Path("vqgan.ckpt"))
    state = {f"module.{name}": value for name, value in load_file(parity / "vfiformer" / "weights.safetensors").items()}
    torch.save(state, here / "net_220.pth")
    return {
        "vqgan": here / "vqgan.ckpt",
        "vfiformer": here / "net_220.pth",
        "clip": parity / "clip_torchscript" / "archive.pt",
    }


def made(folder: Path, dataset: str) -> dict[str, Any]:
    """Write a benchmark in its authors' layout, and return the keys that select it."""
    root = folder / dataset
    root.mkdir()
    MAKERS[dataset](root)
    return {"data.root": str(root), "data.official": False}


def check_scores(out: Path, stage: str = "test") -> None:
    scores = json.loads((out / stage / "metrics.json").read_text())["summary"]
    assert scores["pairs"]["all"] > 0 and 0 <= scores["rows"]["all"]["CIDEr-D"] <= 1000


def adapted(folder: Path, dataset: str, keys: dict[str, Any], weights: str = "float32", **others: Any) -> Path:
    """Run CLIP4IDC's three stages, and return the checkpoint of its adaptation."""
    out = folder / f"clip4idc_{dataset}"
    short = {"trainer.max_epochs": 1, "data.image_size": [SIDE, SIDE], "data.batch_size": 4}
    chosen = {"matrix.dataset": dataset, "matrix.clip_weights": weights}
    words = {"stages.caption.model.vocabulary": None}
    run("clip4idc", out, **chosen, **HERE, **keys, **SMALL_CLIP, **short, **words, **others)
    check_scores(out)
    return best(out, "adapt")


def without_devices(keys: dict[str, Any]) -> dict[str, Any]:
    """Keys without those that select a single process."""
    return {name: value for name, value in keys.items() if name not in ("trainer.devices", "trainer.strategy")}


def procap_keys(files: dict[str, Path], clip4idc: Path, root: str) -> dict[str, Any]:
    inner = "stages.frames.data.data"
    return {
        **HERE,
        "data.image_size": [SIDE, SIDE],
        "data.batch_size": 4,
        f"{inner}.image_size": [SIDE, SIDE],
        f"{inner}.num_workers": 0,
        f"{inner}.root": root,
        f"{inner}.official": False,
        "stages.tokenizer.model.start": str(files["vqgan"]),
        "stages.tokenizer.trainer.max_epochs": 1,
        "stages.tokenizer.trainer.limit_train_batches": 1,
        "stages.tokenizer.trainer.limit_val_batches": 1,
        "stages.frames.model.frames": 3,
        "stages.frames.model.midpoint.weights": str(files["vfiformer"]),
        "stages.frames.model.similarity.encoder": str(clip4idc),
        "stages.procedure.trainer.max_steps": 2,
        "stages.caption.trainer.max_epochs": 1,
        **{
            f"stages.{stage}.model.{name}": value
            for stage in ("procedure", "caption")
            for name, value in (("width", 64), ("layers", 2), ("heads", 1))
        },
        "stages.caption.model.decoder_width": 32,
    }


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("entry", ["clevr_change", "spot_the_diff_official"])
def test_procap_from_the_files_of_its_authors(
    entry: str, here: Path, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The official model trains in two processes, the other one in one."""
    dataset = entry.removesuffix("_official")
    named = made(here, dataset)
    clip4idc = adapted(here, dataset, named, "float16" if entry != dataset else "float32")
    keys = procap_keys(files, clip4idc, named["data.root"])
    if entry != dataset:
        keys["stages.procedure.model.encoder_init"] = str(files["clip"])
        keys["stages.caption.model.min_word_count"] = 1
        keys = {**without_devices(keys), "data.batch_size": 1}
    two_processes = run_stages_of_two_devices(monkeypatch) if entry != dataset else []
    out = here / "procap"
    run("procap", out, **{**named, **keys, "matrix.dataset": entry})
    check_scores(out)
    if entry != dataset:
        steps = torch.load(best(out, "caption"), weights_only=True)["global_step"]
        assert two_processes == ["procedure", "caption"] and steps == 3, "6 pairs, shared by two processes"
    first = torch.load(best(out, "procedure"), weights_only=True)
    assert first["class_path"].endswith("OfficialProcedureModel" if entry != dataset else ".ProcedureModel")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_procap_without_keyframes_runs_without_frames(here: Path, files: dict[str, Path]) -> None:
    named = made(here, "clevr_change")
    keys = procap_keys(files, here / "none.ckpt", named["data.root"])
    keys = {key: value for key, value in keys.items() if not key.startswith("stages.frames.")}
    out = here / "ablation"
    run("procap_ablations", out, **{"matrix.dataset": "clevr_change", "matrix.ablation": "table2_epm"}, **named, **keys)
    check_scores(out)
    assert not (out / "procedures").exists() and list((out / "procedure").rglob("step-*.png"))


@pytest.mark.dist
@pytest.mark.timeout(400)
def test_stages_that_name_two_devices_train_on_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", forking_python())
    short = {"trainer.max_epochs": 1, "data.image_size": [SIDE, SIDE], "data.batch_size": 2}
    chosen = {
        "matrix.dataset": "spot_the_diff",
        "matrix.clip_weights": "float32",
        "stages.caption.model.vocabulary": None,
    }
    run(
        "clip4idc",
        tmp_path / "out",
        **chosen,
        **made(tmp_path, "spot_the_diff"),
        **without_devices(HERE),
        **SMALL_CLIP,
        **short,
    )
    check_scores(tmp_path / "out")
    for stage in ("adapt", "caption"):
        steps = torch.load(best(tmp_path / "out", stage), weights_only=True)["global_step"]
        assert steps == 2, "6 pairs in batches of 2, shared by two processes"


SAID = "The difference between two images is that the first image shows a {}, while the second image has a {}."
NAMC_SMALL = {"model.backbone": "resnet18", "model.width": 32, "model.heads": 2, "model.hidden": 64}
NAMC_SHORT = {
    "data.image_size": [SIDE, SIDE],
    "data.batch_size": 4,
    "trainer.max_epochs": 1,
    "trainer.precision": "32-true",
}


def described(folder: Path, split: str) -> Path:
    """Write a folder of pairs with implicit-change descriptions, all in one split."""
    things = [("dog", "cat"), ("red car", "tree"), ("table", "cat"), ("tree", "dog")]
    for n, (before, after) in enumerate(things):
        for side in ("before", "after"):
            (folder / side).mkdir(parents=True, exist_ok=True)
            color = (40 * n, 90 if side == "after" else 10, 60)
            Image.new("RGB", (80, 72), color).save(folder / side / f"{n}.png")
        with (folder / "captions.jsonl").open("a") as file:
            file.write(json.dumps({"id": str(n), "split": split, "captions": [SAID.format(before, after)]}) + "\n")
    return folder


def namc_keys(here: Path, files: dict[str, Path], stage: str) -> dict[str, Any]:
    """Keys for a small version of a stage that has NAMC's two callbacks."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz.,'-"]
    words = sorted({word.strip(",.") for word in SAID.lower().split()} - {"a", "{}"})
    (here / "bert").mkdir(exist_ok=True)
    (here / "bert" / "vocab.txt").write_text(
        "\n".join([*pieces, *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"), *words])
    )
    callbacks = f"stages.{stage}.trainer.callbacks"
    clip = {**WIDE, "text_cfg": {**CLIP["text_cfg"], "context_length": 77}}
    return {
        f"{callbacks}.NoiseMasking.encoder.clip": clip,
        f"{callbacks}.NoiseMasking.encoder.pretrained": None,
        f"{callbacks}.MaskedReconstruction.tokenizer": str(files["vqgan"]),
        "model.vocabulary": str(here / "bert"),
        "model.pretrained_backbone": False,
        **HERE,
        **NAMC_SMALL,
        **NAMC_SHORT,
    }


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_namc_from_pre_training_to_rebuilt_patches_and_corrupted_data(here: Path, files: dict[str, Path]) -> None:
    root = str(described(here / "pairs", "train"))
    parts = {f"data.parts.{name}.root": root for name in ("spot_the_diff", "instruct_pix2pix", "cc3m")}
    pairs = {"matrix.phase": "pretrain", **parts}
    run("namc", here / "pretrain", **pairs, **namc_keys(here, files, "pretrain"))
    start = sorted((here / "pretrain").rglob("*.ckpt"))[-1]
    # Table 9, as described in its row of docs/notes/reproduction.md
    unseen = {"matrix.phase": "reconstruction", "data.root": str(described(here / "unseen", "val"))}
    checkpoint = {"stages.reconstruction.ckpt_path": str(start)}
    run("namc", here / "rebuilt", **unseen, **checkpoint, **namc_keys(here, files, "reconstruction"))
    measured = json.loads((here / "rebuilt" / "reconstruction" / "stage.json").read_text())["metrics"]
    names = {f"val/{row}/{score}" for row in COMPARISONS for score in ("psnr", "ssim")}
    assert names <= set(measured) and all(math.isfinite(measured[name]) for name in names)
    named = made(here, "image_editing_request")
    for recipe, choice in (
        ("namc", {"matrix.phase": "image_editing_request"}),
        ("namc_robustness", {"matrix.shift": "words40"}),
        ("namc_robustness", {"matrix.shift": "fog_everywhere"}),
    ):
        out = here / "-".join([recipe, *choice.values()])
        begin = {"stages.finetune.model.init_from": str(start)}
        run(recipe, out, **choice, **begin, **named, **HERE, **NAMC_SMALL, **NAMC_SHORT)
        check_scores(out)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("entry", "layers"), [("figure9_encoder3", "encoder_layers"), ("figure9_decoder1", "decoder_layers")]
)
def test_namc_of_other_layers_is_fine_tuned_as_the_header_says(
    entry: str, layers: str, here: Path, files: dict[str, Path]
) -> None:
    pairs = {"matrix.ablation": entry, "data.root": str(described(here / "pairs", "train"))}
    run("namc_ablations", here / "pretrain", **pairs, **namc_keys(here, files, "pretrain"))
    start = sorted((here / "pretrain").rglob("*.ckpt"))[-1]
    given = {"stages.finetune.model.init_from": str(start), f"stages.finetune.model.{layers}": int(entry[-1])}
    named = {"matrix.phase": "image_editing_request", **made(here, "image_editing_request")}
    run("namc", here / "tuned", **named, **given, **HERE, **NAMC_SMALL, **NAMC_SHORT)
    check_scores(here / "tuned")
