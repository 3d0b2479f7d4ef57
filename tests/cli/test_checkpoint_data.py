"""Options that are not given come from the checkpoint, and nothing that could run code is built from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_idc.cli import main
from lightning_idc.cli.checkpoint_data import KEY, with_stored_data

DATA = {
    "class_path": "SyntheticPairs",
    "init_args": {"train_pairs": 8, "val_pairs": 8, "test_pairs": 8, "render_size": 16},
}


@pytest.mark.slow
def test_a_checkpoint_is_tested_and_predicted_on_the_data_of_its_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    config = {
        "model": {"class_path": "PairTransformer", "init_args": {"width": 16, "heads": 2, "max_length": 4}},
        "data": {**DATA, "init_args": {**DATA["init_args"], "cache_dir": "cache"}},  # type: ignore[dict-item]
        "trainer": {"max_epochs": 1, "accelerator": "cpu", "logger": False, "enable_model_summary": False},
    }
    Path("fit.yaml").write_text(json.dumps(config))
    assert main(["fit", "--config", "fit.yaml"]) == 0
    (path,) = Path("checkpoints").glob("*.ckpt")
    options = ["--trainer.accelerator", "cpu", "--trainer.logger", "false"]
    assert main(["predict", "--ckpt_path", str(path), *options]) == 0
    assert len(Path("predictions.jsonl").read_text().splitlines()) == 8
    assert main(["test", "--ckpt_path", str(path), *options, "--data.test_pairs", "9", "--print_config"]) == 0
    shown = capsys.readouterr().out
    assert "test_pairs: 9" in shown and "render_size: 16" in shown


@pytest.mark.parametrize(
    "stored",
    [
        {"class_path": "os.system", "init_args": {}},
        {"class_path": "lightning_idc.data.tables.files.Root", "init_args": {"path": "/"}},
        {"class_path": "Mixture", "init_args": {"parts": {"a": {"class_path": "os.system", "init_args": {}}}}},
        {"class_path": "SyntheticPairs", "init_args": {"transform": torch.zeros(1)}},
        {"class_path": "SyntheticPairs", "init_args": [1]},
        "SyntheticPairs",
        None,
    ],
)
def test_nothing_but_plain_data_modules_of_the_library_is_taken_from_a_file(stored: Any) -> None:
    config = {"model": {"class_path": "PairTransformer"}}
    assert with_stored_data(config, {KEY: stored}) is config


def test_files_are_read_as_in_the_training_where_other_data_are_named() -> None:
    spec = {"size": [64, 64], "value_range": [0, 4095], "bands": None, "interpolation": "bicubic", "domain": "x"}
    checkpoint = {KEY: DATA, "hyper_parameters": {"input_spec": spec}}
    inputs = {"data": {"class_path": "FolderPairs", "init_args": {"root": "mine", "interpolation": "bilinear"}}}
    result = with_stored_data(inputs, checkpoint)["data"]
    assert result["init_args"] == {"value_range": [0, 4095], "root": "mine", "interpolation": "bilinear"}
    assert with_stored_data({}, checkpoint)["data"] == DATA
