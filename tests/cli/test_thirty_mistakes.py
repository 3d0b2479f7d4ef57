"""Thirty mistakes that new users were seen to make: each works as intended, or is refused in one sentence.

The numbers are from a walk-through with four first-time users. Unusual kinds of images are tested in
``tests/images/test_odd_images.py``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from PIL import Image

from lightning_idc.cli import lightning, main
from lightning_idc.models import PairTransformer
from lightning_idc.nn.vocabulary import Vocabulary

ROOT = Path(__file__).resolve().parents[2]
QUICK = str(ROOT / "recipes" / "quickstart.yaml")
TINY = {"width": 8, "heads": 1, "encoder_layers": 1, "decoder_layers": 1, "grid": 2}
FIT = ["fit", "--config", "tiny.yaml"]
DESCRIBE = ["describe", "before.png", "before.png", "--model"]

MISTAKES: dict[str, tuple[list[str], str]] = {
    "1 misspelt key": (["run", "quickstart", "--model.widht", "64"], "did you mean 'width'"),
    "2 misspelt stage": (["run", "quickstart", "--stages.trian.trainer.max_epochs", "1"], "did you mean 'train'"),
    "3 misspelt recipe": (["run", "recipes/quikstart.yaml"], "did you mean 'quickstart'"),
    "5 text for a number": (["run", "quickstart", "--smoke", "--trainer.max_epochs", "abc"], "max_epochs"),
    "6 a run that is not there": (["run", "quickstart", "--resume", "runs/nothing"], "no run in 'runs/nothing'"),
    "8 data that are not there": (["data", "check", "deeppcb", "--root", "nowhere"], "does not contain DeepPCB"),
    "9 an image as a checkpoint": ([*DESCRIBE, "before.png"], "is an image (PNG); expected a checkpoint"),
    "10 checkpoint of another stage": ([*DESCRIBE, "look.ckpt"], "use the checkpoint of a stage that trains one"),
    "11 text as an image": (["describe", "README.md", "before.png", "--model", "model"], "is not a supported image"),
    "12 a recipe as a configuration": (["test", "--config", QUICK], "run it with: lightning-idc run"),
    "13 a configuration that is not there": (["fit", "--config", "nothere.yaml"], "there is no file 'nothere.yaml'"),
    "15 misspelt class": ([*FIT, "--model.class_path", "PairTransfomer"], "did you mean 'PairTransformer'"),
    "16 misspelt data": (["data", "check", "folders"], "did you mean 'folder'"),
    "17 no captions": (["data", "check", "folder", "--root", "bare"], "without them, only prediction is possible"),
    "18 columns of other names": (["predict", "odd.csv", "--model", "model"], "no column 'before'"),
    "19 a partner that is missing": (["predict", "broken.csv", "--model", "model"], "no such image file"),
    "19 a table in UTF-16": (["predict", "utf16.csv", "--model", "model"], "save the file as UTF-8"),
    "20 predict without weights": (["predict", "--config", "tiny.yaml"], "expected --ckpt_path FILE"),
    "20 predict with weights unsaid": (["predict", "--ckpt_path"], "--ckpt_path True: expected the path of a"),
    "20 test without weights": (["test", "--config", "tiny.yaml"], "expected --ckpt_path FILE"),
    "21 an address as an image": (
        ["describe", "https://example.org/a.png", "before.png", "--model", "model"], "download it first",
    ),
    "24 a file that holds no captions": (["score", "scores.json"], "'rows' is {'a': 1}; expected one caption"),
    "26 batch size 0": ([*FIT, "--data.batch_size", "0"], "expected at least 1. Got value: 0"),
    "27 weights of another class": (
        ["test", "--config", "tiny.yaml", "--ckpt_path", "other.ckpt"], "the checkpoint was written by another model",
    ),
    "29 a hub id without a network": ([*DESCRIBE, "nobody/nothing"], "`hf download nobody/nothing`"),
    "30 the wrong file to convert": (
        ["convert", "clip4idc", "foreign.bin", "--out", "out.ckpt"], "expected an official CLIP4IDC",
    ),
    "30 an image to convert": (["convert", "clip4idc", "before.png", "--out", "out.ckpt"], "is an image (PNG)"),
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Valid and invalid pairs, tables, checkpoints and models."""
    root = tmp_path_factory.mktemp("mistakes")
    for folder in ("pairs", "bare"):
        for side in ("before", "after"):
            (root / folder / side).mkdir(parents=True)
            for number in range(6):
                Image.new("RGB", (16, 16), (40 * number, 0, 0)).save(root / folder / side / f"{number}.png")
    splits = ["train", "train", "train", "val", "val", "test"]
    rows = "".join(f"{number},it turned red,{split}\n" for number, split in enumerate(splits))
    (root / "pairs" / "captions.csv").write_text("id,captions,split\n" + rows)
    Image.new("RGB", (16, 16)).save(root / "before.png")
    (root / "README.md").write_text("# words\n")
    (root / "odd.csv").write_text("img_a,img_b,text\nx,y,z\n")
    (root / "utf16.csv").write_bytes("before,after,captions\n".encode("utf-16"))
    (root / "broken.csv").write_text("before,after,captions\npairs/before/0.png,pairs/after/gone.png,it moved\n")
    (root / "scores.json").write_text(json.dumps({"rows": {"a": 1}, "b": 2}))
    words = Vocabulary.build(["it turned red"]).words
    model = PairTransformer(vocabulary=words, image_size=(16, 16), max_length=5, **TINY)
    model.build()
    model.save_pretrained(root / "model")
    trainer = {"accelerator": "cpu", "logger": False, "enable_model_summary": False, "max_epochs": 1}
    data = {"class_path": "FolderPairs", "init_args": {"root": "pairs", "batch_size": 2, "image_size": 16}}
    config = {"trainer": trainer, "model": {"class_path": "PairTransformer", "init_args": TINY}, "data": data}
    (root / "tiny.yaml").write_text(yaml.safe_dump(config))
    stored = {"pytorch-lightning_version": "2.5.0", "state_dict": {"x": torch.zeros(2)}, "hyper_parameters": {}}
    stored |= {"epoch": 0, "global_step": 0, "loops": {}, "callbacks": {}, "optimizer_states": [], "lr_schedulers": []}
    for name, holds in (("look", "lightning_idc.models.ObjectNaming"), ("other", "somebody.Else")):
        torch.save({**stored, "class_path": holds}, root / f"{name}.ckpt")
    torch.save({"state_dict": {"clip.x": torch.zeros(2)}}, root / "foreign.bin")
    return root


@pytest.fixture
def inside(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(place)
    return place


def sentence(capsys: pytest.CaptureFixture[str]) -> str:
    """The printed text, which must have only short lines and no traceback."""
    captured = capsys.readouterr()
    both = captured.out + captured.err
    assert "Traceback" not in both and max(map(len, both.splitlines()), default=0) < 700
    return both


@pytest.mark.parametrize("mistake", MISTAKES)
def test_it_is_refused_with_what_to_do(mistake: str, inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, wanted = MISTAKES[mistake]
    assert main(arguments) in (1, 2)
    assert wanted in sentence(capsys)
    assert not list(inside.glob("runs/*")), "nothing is left behind"


def test_4_lightning_run_knows_the_names_of_recipes(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lightning(["run", "quickstart", "--model.widht", "64"]) == 1
    assert "did you mean 'width'" in sentence(capsys)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_7_a_gpu_that_is_not_there(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FIT, "--trainer.accelerator", "gpu"]) == 1
    assert "--trainer.accelerator cpu needs none" in sentence(capsys)


def test_14_a_misspelt_verb(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fitt"]) == 2
    assert "did you mean 'fit'" in sentence(capsys)


@pytest.mark.parametrize(
    ("package", "arguments", "wanted"),
    [
        ("wandb", [*FIT, "--trainer.logger", "WandbLogger"], "wandb"),
        ("pydicom", ["describe", "scan.dcm", "scan.dcm", "--model", "model"], "lightning_idc[scientific]"),
        ("uvicorn", ["serve", "--model", "model"], "lightning_idc[serve]"),
        ("onnxscript", ["export", "onnx", "--out", "out", "--model", "model"], "lightning_idc[onnx]"),
    ],
)
def test_22_and_28_a_package_that_is_not_installed(
    package: str,
    arguments: list[str],
    wanted: str,
    inside: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in [package, *(loaded for loaded in sys.modules if loaded.startswith(f"{package}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    (inside / "scan.dcm").write_bytes(bytes(128) + b"DICM" + bytes(64))
    assert main(arguments) == 1
    said = sentence(capsys)
    assert wanted in said and "pip install" in said


def test_23_another_python_is_named_with_the_target(tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\ncase \"$*\" in *version_info*) exit 1;; *) echo 'Python 3.8.0';; esac\n")
    old.chmod(0o755)
    command = ["make", "--file", str(ROOT / "Makefile"), f"PYTHON={old}", "VENV=venv", "demo"]
    for name in ("requirements.lock", "setup.cfg", "setup.py", "pyproject.toml"):
        (tmp_path / name).touch()
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "MAKEFLAGS": ""})
    assert done.returncode and "Try: make demo PYTHON=python3.12" in done.stdout


@pytest.mark.slow
def test_25_very_small_images_are_trained_on_as_they_are(inside: Path, tmp_path: Path) -> None:
    folder = ["--trainer.default_root_dir", str(tmp_path)]
    assert main([*FIT, "--data.image_size", "7", "--model.grid", "1", *folder]) == 0
    (checkpoint,) = tmp_path.rglob("*.ckpt")
    result = torch.load(checkpoint, weights_only=True)["hyper_parameters"]
    assert result["input_spec"]["size"] == [7, 7], "and the checkpoint says so"
