"""fit, validate, test, predict and run leave the files of a user in the current folder unchanged, byte for byte."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import toy_idc
import yaml
from helpers.stages_here import stages_here

from lightning_idc.cli import main

USER_FILES = [
    "config.yaml", "config_of_run.yaml", "run.json", ".lock", "hparams.yaml", "metrics.csv", "last.ckpt", "best.ckpt",
    "leaderboard.md", "predictions.jsonl", "metrics.json", "report.html", "first/1.png", "first/stage.yaml",
    "first/config.yaml", "first/checkpoints/last.ckpt", "test/1.png", "checkpoints/last.ckpt",
    "checkpoints/interrupted.ckpt", "checkpoints/epoch=1-step=8.ckpt", "lightning_logs/version_0/config.yaml",
    "lightning_logs/version_0/metrics.csv", "seed_1/notes.txt", "seed_1/second/notes.txt",
]  # fmt: skip
ELSEWHERE = """
base:
  trainer: {max_epochs: 2, accelerator: cpu, logger: false, enable_model_summary: false, num_sanity_val_steps: 0}
  model: {class: toy_idc.Measured, width: 3}
  data: {class: toy_idc.Numbers, items: 8}
stages:
  second: {run: fit, trainer: {callbacks: {ModelCheckpoint: {dirpath: checkpoints, monitor: val/loss}}}}
"""
TRAINER = {"max_epochs": 2, "accelerator": "cpu", "enable_model_summary": False, "enable_progress_bar": False}


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Current folder with a user's files, and with a configuration and a recipe in ``in``."""
    for name in USER_FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"mine: {name}")
    (tmp_path / "in").mkdir()
    model: dict[str, Any] = {"class_path": "toy_idc.Toy"}
    config = {"trainer": {**TRAINER, "logger": False}, "model": model, "data": {"class_path": "toy_idc.Numbers"}}
    (tmp_path / "in/fit.yaml").write_text(yaml.safe_dump(config))
    (tmp_path / "in/toy.yaml").write_text(toy_idc.RECIPE)
    monkeypatch.chdir(tmp_path)
    stages_here(monkeypatch)
    return tmp_path


def changed(before: dict[str, bytes], after: dict[str, bytes]) -> set[str]:
    """Names of the user's files that were removed or replaced."""
    return {name for name, content in before.items() if after.get(name) != content}


FIT = ["fit", "--config", "in/fit.yaml"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        [],
        ["--trainer.logger", "true"],
        ["--trainer.logger", "CSVLogger"],
        ["--trainer.default_root_dir", "first"],
        ["--trainer.callbacks+", "ModelCheckpoint", "--trainer.callbacks.save_last", "true"],
    ],
    ids=" ".join,
)
def test_training_replaces_no_file(more: list[str], home: Path) -> None:
    before = tree(home)
    for _ in range(2):
        assert main([*FIT, *more]) == 0
        assert changed(before, tree(home)) == set()
    written = [path for path in home.rglob("config*.yaml") if "toy_idc.Toy" in path.read_text()]
    assert written, "the configuration is saved under another name"


@pytest.mark.slow
def test_testing_and_predicting_replace_no_file(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FIT, "--trainer.default_root_dir", "in/run"]) == 0
    (checkpoint,) = (home / "in/run").rglob("*.ckpt")
    before = tree(home)
    for verb in ("validate", "test", "predict"):
        main([verb, "--config", "in/fit.yaml", "--ckpt_path", str(checkpoint)])
        assert changed(before, tree(home)) == set()
        assert "Traceback" not in capsys.readouterr().err


@pytest.mark.slow
def test_a_stopped_training_leaves_the_state_of_another_one(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, step = tree(home), toy_idc.Toy.training_step

    def interrupted_step(self: toy_idc.Toy, *arguments: Any) -> torch.Tensor:
        if self.global_step == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self, *arguments)

    monkeypatch.setattr(toy_idc.Toy, "training_step", interrupted_step)
    assert main(FIT) == 130
    assert changed(before, tree(home)) == set()
    saved = torch.load(home / "checkpoints/interrupted-v1.ckpt", weights_only=True)
    assert saved["global_step"] == 3
    saved["state_dict"] = {name: value + 1 for name, value in saved["state_dict"].items()}
    monkeypatch.setattr(toy_idc.Toy, "training_step", step)
    assert main([*FIT, "--ckpt_path", "checkpoints/interrupted-v1.ckpt"]) == 0, "the run goes on from it"


@pytest.mark.parametrize("more", [[], ["--seeds", "1"]], ids=["one", "seeds"])
def test_a_run_is_not_written_into_folders_of_the_user(
    more: list[str], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "run.json").unlink()
    before = tree(home)
    assert main(["run", "in/toy.yaml", "--out", ".", *more]) == 1
    assert tree(home) == before
    assert "which is not of a run" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_beside_other_files_replaces_none(home: Path) -> None:
    (home / "notes").mkdir()
    (home / "notes/log.txt").write_text("mine")
    before = tree(home)
    assert main(["run", "in/toy.yaml", "--out", "notes"]) == 0
    assert changed(before, tree(home)) == set() and (home / "notes/second/checkpoints").is_dir()


@pytest.mark.slow
def test_last_states_of_a_run_are_in_its_folder(home: Path) -> None:
    """Checkpoints may go to a folder of the user with its own last.ckpt, but last states go to the run's folder."""
    (home / "in/toy.yaml").write_text(ELSEWHERE)
    before = tree(home)
    assert main(["run", "in/toy.yaml", "--out", "in/run"]) == 0
    assert changed(before, tree(home)) == set()
    assert (home / "in/run/second/checkpoints/last.ckpt").is_file()
