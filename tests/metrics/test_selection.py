"""A model is not selected on the pairs that it is tested on, and the results name the split of the selection."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.tiny import TinyCaptioner, TinyPairs, TinySource
from helpers.training import QUIET, fit
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from lightning_idc.callbacks.results import selected_on
from lightning_idc.callbacks.selection import ValidationSelection
from lightning_idc.callbacks.show_results import ShowResults
from lightning_idc.callbacks.write_predictions import weights_digest
from lightning_idc.data.source import PairSource
from lightning_idc.metrics.results import read_result
from lightning_idc.utils.errors import ConfigError


class OwnValidation(TinyPairs):
    """TinyPairs with its own validation split; TinyPairs itself validates on its test split, as in published code."""

    def source(self, split: str) -> PairSource:
        return TinySource(7, 300) if split == "val" else super().source(split)


def train(data: TinyPairs, folder: Path, *callbacks: object) -> Trainer:
    trainer = Trainer(max_epochs=1, callbacks=list(callbacks), default_root_dir=folder, **QUIET)
    trainer.fit(TinyCaptioner(), data)
    return trainer


def test_rejects_monitoring_the_test_split(tmp_path: Path) -> None:
    for chooser in (ModelCheckpoint(monitor="test/CIDEr-D"), EarlyStopping("test/loss")):
        with pytest.raises(ConfigError, match=r"is monitored to select the model.*legacy/procap"):
            train(OwnValidation(), tmp_path, chooser, ValidationSelection())


def test_rejects_validation_on_test_pairs_without_a_legacy_protocol(tmp_path: Path) -> None:
    def chooser() -> ModelCheckpoint:
        return ModelCheckpoint(
            tmp_path, monitor="val/CIDEr-D", mode="max", filename="best", enable_version_counter=False
        )

    with pytest.raises(ConfigError, match="validation pairs are also test pairs"):
        train(TinyPairs(), tmp_path, chooser(), ValidationSelection())
    assert not list(tmp_path.glob("*.ckpt"))
    train(TinyPairs(), tmp_path, chooser(), ValidationSelection("legacy/procap"))
    assert selected_on(tmp_path / "best.ckpt") == "val"
    # without a selection nothing is refused
    train(TinyPairs(), tmp_path, ModelCheckpoint(tmp_path, save_last=True), ValidationSelection())
    assert selected_on(tmp_path / "last.ckpt") is None
    train(OwnValidation(), tmp_path, chooser(), ValidationSelection())


def test_a_test_writes_its_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = fit([], tmp_path, TinyCaptioner(), max_steps=2)
    trainer = Trainer(callbacks=[ShowResults(examples=0, report_pairs=0)], default_root_dir=tmp_path, **QUIET)
    trainer.test(model, TinyPairs(), verbose=False)
    result = read_result(tmp_path / "metrics.json")
    assert result is not None
    whole = result["summary"]["rows"]["all"]
    scores = result["scores"]["all"]
    assert scores == pytest.approx({name: value for name, value in whole.items() if name in scores}, abs=1e-5)
    low, high = result["intervals"]["CIDEr-D"]
    assert low <= scores["CIDEr-D"] <= high and result["weights"] == weights_digest(model)
    assert result["counts"]["all"] == {"pairs": 7, "references": 21}
    assert (result["model"], result["data"]["name"], result["data"]["split"]) == ("TinyCaptioner", "TinyPairs", "test")
    assert result["decoding"]["num_beams"] == 1 and result["selection"] is None
    # scoring the predictions file with the verb gives the same result
    from lightning_idc.cli import main

    capsys.readouterr()
    assert main(["score", str(tmp_path / "predictions.jsonl"), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["scores"]["all"] == pytest.approx(result["scores"]["all"], abs=1e-6)
    assert again["data"]["fingerprint"] == result["data"]["fingerprint"]
    assert again["predictions"] == result["predictions"]
    assert again["protocol"] == result["protocol"]


def test_a_protocol_that_does_not_fit_costs_no_test(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = fit([], tmp_path, TinyCaptioner(), max_steps=1)
    callback = ShowResults(examples=0, report_pairs=0, protocol="clevr-change/no-change")
    Trainer(callbacks=[callback], default_root_dir=tmp_path, **QUIET).test(model, TinyPairs(), verbose=False)
    assert "no scores under clevr-change/no-change in metrics.json: no pair is unchanged" in capsys.readouterr().out
    assert list(json.loads((tmp_path / "metrics.json").read_text())) == ["summary", "baseline_check"]
    assert read_result(tmp_path / "metrics.json") is None, "a leaderboard passes over it"
    with pytest.raises(ConfigError, match="there is no protocol"):
        ShowResults(protocol="none")
