"""A checkpoint of plain types cannot cause code to run: each gadget would leave a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.bad_files.models import gadgets, touch
from helpers.bad_files.weights import MODEL, good_checkpoint
from PIL import Image

from lightning_idc.cli import main
from lightning_idc.models.loading import load_captioner
from lightning_idc.utils.errors import CheckpointError


@pytest.fixture(scope="module")
def good() -> dict[str, Any]:
    return good_checkpoint()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    trace = tmp_path / "PWNED"
    (tmp_path / "evil_mod.py").write_text(
        f"{touch(trace)}\nclass Evil:\n    pass\ndef build(*a, **k):\n    {touch(trace)}\n"
    )
    for name in ("b.png", "a.png"):
        Image.new("RGB", (16, 16), "red").save(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(good: dict[str, Any], change: dict[str, Any]) -> None:
    torch.save({**good, "hyper_parameters": {**good["hyper_parameters"], **change}}, "model.ckpt")


def run(arguments: list[str]) -> None:
    # which error such a file causes does not matter here, only that none of its code is run
    try:
        main(arguments)
    except (Exception, SystemExit) as error:
        print(error)


TRAINER = ["--trainer.accelerator=cpu", "--trainer.logger=false", "--trainer.max_steps=1"]
VERBS = {
    "describe": ["describe", "b.png", "a.png", "--model", "model.ckpt"],
    **{
        verb: [
            verb,
            *("--model", MODEL, "--data", "lightning_idc.data.synthetic.SyntheticPairs"),
            *("--data.train_pairs=4", "--data.val_pairs=4", "--data.test_pairs=4", "--data.cache_dir=cache"),
            *(*TRAINER, "--ckpt_path", "model.ckpt"),
        ]
        for verb in ("test", "predict", "fit")
    },
}


def test_the_good_checkpoint_is_described(
    good: dict[str, Any], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(good, {})
    assert main([*VERBS["describe"], "--json"]) == 0
    assert '"log_prob"' in capsys.readouterr().out


@pytest.mark.parametrize("gadget", list(gadgets(Path())))
def test_describe_runs_nothing_of_a_checkpoint(gadget: str, good: dict[str, Any], folder: Path) -> None:
    write(good, gadgets(folder / "PWNED")[gadget])
    run(VERBS["describe"])
    assert not (folder / "PWNED").exists()


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["test", "predict", "fit"])
@pytest.mark.parametrize(
    "gadget", ["sympy in adapters", "module in adapters", "schedule beside the file", "vocabulary"]
)
def test_training_verbs_run_nothing_of_a_checkpoint(verb: str, gadget: str, good: dict[str, Any], folder: Path) -> None:
    write(good, gadgets(folder / "PWNED")[gadget])
    run(VERBS[verb])
    assert not (folder / "PWNED").exists()


@pytest.mark.parametrize("gadget", ["sympy in adapters", "vocabulary", "adapter with a nested class"])
def test_a_hostile_checkpoint_raises_a_one_line_error(gadget: str, good: dict[str, Any], folder: Path) -> None:
    write(good, gadgets(folder / "PWNED")[gadget])
    with pytest.raises(CheckpointError, match="may be malicious"):
        load_captioner("model.ckpt")


def test_a_module_in_this_folder_is_imported_only_when_it_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", [place for place in __import__("sys").path if place])
    monkeypatch.setenv("LIGHTNING_IDC_IMPORT", "")
    assert main(["list", "recipes"]) == 0
    assert not (folder / "PWNED").exists()
    assert main(["list", "recipes", "--import", "evil_mod"]) == 0
    assert (folder / "PWNED").exists()
    assert main(["list", "recipes", "--import", "nowhere_to_be_found"]) == 1
    assert "nowhere_to_be_found" in capsys.readouterr().err
