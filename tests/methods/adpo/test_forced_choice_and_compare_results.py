"""ForcedChoice and CompareResults. Oracle: a captioner with a known preference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tiny import TinyCaptioner, TinyPairs
from helpers.training import QUIET
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torch.utils.data import DataLoader, Subset

from lightning_idc.callbacks.compare_results import CompareResults, scores_table
from lightning_idc.callbacks.forced_choice import ForcedChoice
from lightning_idc.callbacks.show_results import ShowResults
from lightning_idc.callbacks.unchanged_control import UnchangedControl
from lightning_idc.data.synthetic import SyntheticPairs
from lightning_idc.data.synthetic.counterfactual import true_sentence
from lightning_idc.data.synthetic.facts import change_accuracy
from lightning_idc.images.types import Caption, PairBatch
from lightning_idc.utils.errors import ConfigError, IDCError

WORDS = ["<pad>", "<bos>", "<eos>", "<unk>"]


class FixedPreference(TinyCaptioner):
    """Gives the first caption a score of ``sign`` and every other caption a score of 0."""

    def __init__(self, sign: float = 1.0, **options: Any) -> None:
        super().__init__(vocabulary=[*WORDS, "red"], max_length=4, **options)
        self.sign = sign

    def score(self, features: Any, tokens: Tensor, mask: Tensor) -> Tensor:
        scores = torch.zeros(tokens.shape[:2])
        scores[:, 0] = self.sign
        return scores


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> SyntheticPairs:
    cache = tmp_path_factory.mktemp("cache")
    return SyntheticPairs(train_pairs=2, val_pairs=2, test_pairs=6, render_size=16, cache_dir=cache, progress=False)


@pytest.mark.parametrize(("sign", "expected"), [(1.0, 100.0), (-1.0, 0.0)])
def test_forced_choice_accuracy_of_a_known_preference(data: SyntheticPairs, sign: float, expected: float) -> None:
    trainer = Trainer(callbacks=[ForcedChoice(num_counterfactuals=3)], **QUIET)
    assert trainer.test(FixedPreference(sign), data, verbose=False)[0]["test/forced_choice"] == expected


class PrefersFirstPair(FixedPreference):
    """Prefers the true sentence of the first pair only."""

    def encode(self, batch: PairBatch) -> Any:
        self.sign = 1.0 if batch.ids[0].endswith("-000000") else -1.0
        return super().encode(batch)


class RepeatedPair(SyntheticPairs):
    """One pair per batch, with the first pair repeated at the end, as by a distributed sampler that pads its share."""

    def test_dataloader(self) -> Any:
        loader = super().test_dataloader()
        return DataLoader(Subset(loader.dataset, [*range(len(loader.dataset)), 0]), collate_fn=loader.collate_fn)


def test_repeated_pairs_count_once(tmp_path: Path) -> None:
    data = RepeatedPair(
        train_pairs=2, val_pairs=2, test_pairs=4, render_size=16, cache_dir=tmp_path, progress=False, batch_size=1
    )
    trainer = Trainer(callbacks=[ForcedChoice(num_counterfactuals=3)], **QUIET)
    assert trainer.test(PrefersFirstPair(), data, verbose=False)[0]["test/forced_choice"] == 25.0


def test_true_sentence_is_true_in_every_wording(data: SyntheticPairs) -> None:
    source = data.source("test")
    for index in range(len(source)):
        truth = source.ground_truth(index)
        for wording in range(5):
            assert False not in change_accuracy(true_sentence(truth, wording), truth).values()
        assert {true_sentence(truth, wording) for wording in range(5)} == set(source.captions(index))


def test_forced_choice_needs_rendered_pairs() -> None:
    trainer = Trainer(callbacks=[ForcedChoice()], **QUIET)
    trainer.test(FixedPreference(), TinyPairs(), verbose=False)
    assert "test/forced_choice" not in trainer.callback_metrics
    with pytest.raises(IDCError, match="at least 1"):
        ForcedChoice(num_counterfactuals=0)


def test_compare_results_writes_one_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    earlier = tmp_path / "test_sft"
    earlier.mkdir()
    (earlier / "stage.json").write_text(json.dumps({"metrics": {"test/CIDEr-D": 12.34, "test/BLEU-4": 5.0}}))
    compare = CompareResults("ADPO", {"SFT": str(earlier)}, ["BLEU-4", "CIDEr-D", "never measured"])
    trainer = Trainer(callbacks=[compare], default_root_dir=tmp_path / "test_adpo", **QUIET)
    scores = trainer.test(FixedPreference(), TinyPairs(), verbose=False)[0]
    table = json.loads((tmp_path / "test_adpo" / "comparison.json").read_text())
    assert table["SFT"] == {"BLEU-4": 5.0, "CIDEr-D": 12.34}
    assert table["ADPO"]["CIDEr-D"] == pytest.approx(scores["test/CIDEr-D"])
    printed = capsys.readouterr().out
    assert "| SFT  |    5.0 |    12.3 |" in printed
    assert (tmp_path / "test_adpo" / "comparison.md").read_text().strip() in printed
    with pytest.raises(IDCError, match="no finished stage"):
        Trainer(callbacks=[CompareResults("x", {"SFT": str(tmp_path)})], **QUIET).test(
            FixedPreference(), TinyPairs(), verbose=False
        )


class SaysTwoTypes(FixedPreference):
    """Generates "added" as the change of every pair, or "removed" if its images are identical."""

    def encode(self, batch: PairBatch) -> Any:
        self.identical = (batch.images[:, 0] == batch.images[:, 1]).flatten(1).all(1)
        return super().encode(batch)

    def generate(self, features: Any) -> list[Caption]:
        return [Caption(f"the red cube was {'removed' if same else 'added'}", 0.0) for same in self.identical]


def test_facts_of_identical_images_stand_below_those_of_the_pairs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = SyntheticPairs(
        train_pairs=2, val_pairs=2, test_pairs=24, render_size=16, cache_dir=tmp_path, progress=False, no_change=0.0
    )
    callbacks = [UnchangedControl(), ShowResults(examples=0, report_pairs=0), CompareResults("a", {})]
    trainer = Trainer(callbacks=callbacks, default_root_dir=tmp_path, **QUIET)
    trainer.test(SaysTwoTypes(), data, verbose=False)
    source = data.source("test")
    types = [source.ground_truth(index)["change_type"] for index in range(len(source))]
    added, removed = (100 * types.count(kind) / len(types) for kind in ("add", "drop"))
    assert added != removed
    row = json.loads((tmp_path / "comparison.json").read_text())["a"]["compared"]
    assert row["facts"]["type"] == pytest.approx(added)
    assert row["identical_facts"]["type"] == pytest.approx(removed)
    assert row["facts_over_identical"]["type"]["difference"] == pytest.approx(added - removed)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| a, identical images")]
    assert f" {removed:.1f} " in lines[0] and len(lines) == 1


@pytest.mark.slow
def test_table_has_baselines_and_paired_intervals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = TinyPairs(batch_size=4)
    fresh, trained = (TinyCaptioner(captions_per_pair=2) for _ in range(2))
    Trainer(max_epochs=40, enable_checkpointing=False, limit_val_batches=0, **QUIET).fit(trained, data)
    Trainer(max_epochs=0, enable_checkpointing=False, limit_val_batches=0, **QUIET).fit(fresh, data)
    for name, captioner, last in (("sft", fresh, []), ("dpo", trained, [True])):
        callbacks = [UnchangedControl(), ShowResults(examples=0, report_pairs=0)]
        compare = [CompareResults("DPO", {"SFT": str(tmp_path / "sft")}) for _ in last]
        trainer = Trainer(callbacks=[*callbacks, *compare], default_root_dir=tmp_path / name, **QUIET)
        metrics = trainer.test(captioner, data, verbose=False)[0]
        (tmp_path / name / "stage.json").write_text(json.dumps({"metrics": metrics}))
    same = json.loads((tmp_path / "dpo" / "unchanged.json").read_text())
    source = data.source("test")
    for index, id in enumerate(source.ids):
        assert same[id] == trained.describe(source.load(index).before, source.load(index).before).text
    table = json.loads((tmp_path / "dpo" / "comparison.json").read_text())
    row = table["DPO"]["compared"]
    assert row["previous"] == "SFT" and row["baselines"].keys() == {
        "constant caption",
        "shuffled captions",
        "identical images",
    }
    assert row["score"] == pytest.approx(table["DPO"]["CIDEr-D"]) and row["verdict"]
    low, high = (row["over_previous"]["CIDEr-D"][end] for end in ("low", "high"))
    assert low <= row["over_previous"]["CIDEr-D"]["difference"] <= high
    written = (tmp_path / "dpo" / "comparison.md").read_text()
    assert (
        f"[{low:.1f}, {high:.1f}]" in written
        and "not decided" in written
        and written.strip() in capsys.readouterr().out
    )


def test_table_without_a_training_split(tmp_path: Path) -> None:
    class TestOnly(TinyPairs):
        def source(self, split: str) -> Any:
            if split == "train":
                raise ConfigError("there is no training split")
            return super().source(split)

    captioner = TinyCaptioner(vocabulary=[*WORDS, "red"], max_length=4)
    callbacks = [ShowResults(examples=0, report_pairs=0), CompareResults("SFT", {})]
    with pytest.warns(UserWarning, match="no baseline of a constant caption: there is no training split"):
        Trainer(callbacks=callbacks, default_root_dir=tmp_path, **QUIET).test(captioner, TestOnly(), verbose=False)
    assert json.loads((tmp_path / "comparison.json").read_text())["SFT"]["compared"]["baselines"].keys() == {
        "shuffled captions"
    }


def test_unchanged_control_requires_a_captioner() -> None:
    with pytest.raises(IDCError, match="UnchangedControl needs a PairCaptioner"):
        UnchangedControl().setup(Trainer(**QUIET), LightningModule(), "test")


def test_scores_table_is_aligned_markdown() -> None:
    assert scores_table({"a": {"x": 1.0}, "long": {"y": 22.5}}, ["x", "y"]).splitlines() == [
        "|      |   x |    y |",
        "|------|----:|-----:|",
        "| a    | 1.0 |    - |",
        "| long |   - | 22.5 |",
    ]
