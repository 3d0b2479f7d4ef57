"""Inference speed of a trained captioner, measured with a simulated clock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.tiny import TinyPairs
from helpers.training import QUIET, fit
from lightning.pytorch import Trainer

from lightning_idc.callbacks import ShowResults, Throughput
from lightning_idc.callbacks import throughput as module
from lightning_idc.utils.errors import ConfigError


def measure(folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Trainer:
    """Test 7 pairs in batches of 2; encoding takes one second and decoding three."""
    model = fit([], folder, max_epochs=1)
    seconds = iter([0.0, 1.0, 1.0, 4.0] * 10)
    monkeypatch.setattr(module, "perf_counter", lambda: next(seconds))
    trainer = Trainer(callbacks=[Throughput(**options), ShowResults()], default_root_dir=folder / "out", **QUIET)
    trainer.test(model, TinyPairs(batch_size=2), verbose=False)
    return trainer


@pytest.mark.slow
def test_tokens_and_pairs_a_second_with_and_without_encoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = measure(tmp_path, monkeypatch, batches=2, warmup=1)
    measured = {name: float(value) for name, value in trainer.callback_metrics.items() if "per_second" in name}
    # two batches of two pairs, each with one second of encoding and three of decoding
    assert measured["test/pairs_per_second"] == pytest.approx(4 / 8)
    assert measured["test/decoding_pairs_per_second"] == pytest.approx(4 / 6)
    model: Any = trainer.lightning_module
    captions = [record["caption"] for record in model.predictions][2:6]
    limit = model.hparams["max_length"]
    tokens = sum(min(len(ids) - 1, limit) for ids in model.tokenize(captions))
    assert measured["test/tokens_per_second"] == pytest.approx(tokens / 8)
    assert measured["test/decoding_tokens_per_second"] == pytest.approx(tokens / 6)
    written = json.loads(next((tmp_path / "out").rglob("metrics.json")).read_text())
    assert written["throughput"] == pytest.approx({name.removeprefix("test/"): v for name, v in measured.items()})


def test_a_test_within_the_warm_up_measures_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(UserWarning, match="Throughput measured nothing: the test has at most 4 batches"):
        trainer = measure(tmp_path, monkeypatch, warmup=4)
    assert not any("per_second" in name for name in trainer.callback_metrics)


def test_numbers_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match="batches is 0"):
        Throughput(batches=0)
