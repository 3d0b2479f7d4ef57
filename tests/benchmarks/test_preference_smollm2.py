"""Preference optimisation of the captioner with a language model, benchmarks/studies/preference_runs.py."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

pytest.importorskip("timm")
pytest.importorskip("peft")

from benchmarks.studies.preference_runs import LanguageRun
from lightning_idc.methods.adpo.preference import PreferenceOptimization


class SmallRun(LanguageRun):
    scenes: ClassVar[Mapping[str, Any]] = {"render_size": 32, "batch_size": 4}


def small(tmp_path: Path, **numbers: Any) -> argparse.Namespace:
    epochs = {"sft_epochs": 1, "warm_epochs": 1, "align_epochs": 0, "epochs": 1, "share": 0.5, "rate": 3e-4}
    numbers = {"pairs": 8, "test_pairs": 4, **epochs, **numbers}
    return argparse.Namespace(weights=None, language_model=None, cache=tmp_path / "cache", **numbers)


@pytest.mark.slow
def test_preference_optimisation_starts_from_the_supervised_policy(tmp_path: Path) -> None:
    args = small(tmp_path)
    run = SmallRun(args, tmp_path / "1", 1, "careful")
    policy = run.supervised()
    expected = torch.load(policy, weights_only=True)["state_dict"]
    trained = {name for name, value in expected.items() if "lora_B" in name and value.abs().max() > 0}
    assert trained, "the training by likelihood left LoRA at its initial zeros"
    captioner = run.captioner(1e-12, init_from=policy, captions_per_pair=2)
    trainer = run.fit(captioner, run.pairs(), 1, [*run.parts(), PreferenceOptimization(caption_weight=0.0)], args.share)
    assert trainer.global_step == 1
    weights = captioner.state_dict()
    for name, value in expected.items():
        torch.testing.assert_close(weights[name], value, msg=name)


@pytest.mark.slow
def test_alignment_is_on_other_pairs_with_careful_captions_and_sft_starts_from_it(tmp_path: Path) -> None:
    args = small(tmp_path, align_epochs=1)
    run = SmallRun(args, tmp_path / "1", 1, "people")
    captioner, data = run.untrained(), run.pairs()
    assert not set(run.first_pairs().train_captions()) & set(data.train_captions())
    expected = torch.load(tmp_path / "1" / "aligned-people.ckpt", weights_only=True)["state_dict"]
    assert any(value.abs().max() > 0 for name, value in expected.items() if "lora_B" in name)
    run.trainer(1, run.parts(), limit_train_batches=0).fit(captioner, data)
    for name, value in expected.items():
        torch.testing.assert_close(captioner.state_dict()[name], value, msg=name)
