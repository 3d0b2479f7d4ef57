"""ForcedChoice and CompareResults. Oracle: a captioner whose preference is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from preference_world import QUIET
from tiny import TinyCaptioner, TinyPairs
from torch import Tensor

from lightning_idc.callbacks.compare_results import CompareResults, as_table
from lightning_idc.callbacks.forced_choice import ForcedChoice
from lightning_idc.core.types import PairError
from lightning_idc.data.synthetic import SyntheticPairs
from lightning_idc.data.synthetic.counterfactual import true_sentence
from lightning_idc.data.synthetic.facts import change_accuracy

WORDS = ["<pad>", "<bos>", "<eos>", "<unk>"]


class Knowing(TinyCaptioner):
    """Scores the first caption by ``sign``, every other one by 0."""

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
def test_the_share_of_won_comparisons(data: SyntheticPairs, sign: float, expected: float) -> None:
    trainer = Trainer(callbacks=[ForcedChoice(rivals=3)], **QUIET)
    assert trainer.test(Knowing(sign), data, verbose=False)[0]["test/forced_choice"] == expected


def test_the_true_sentence_is_true_in_every_wording(data: SyntheticPairs) -> None:
    source = data.source("test")
    for index in range(len(source)):
        truth = source.truth(index)
        for wording in range(5):
            assert False not in change_accuracy(true_sentence(truth, wording), truth).values()
        assert {true_sentence(truth, wording) for wording in range(5)} == set(source.captions(index))


def test_other_data_is_refused() -> None:
    with pytest.raises(PairError, match="SyntheticPairs, whose truth is known"):
        Trainer(callbacks=[ForcedChoice()], **QUIET).test(Knowing(), TinyPairs(), verbose=False)
    with pytest.raises(PairError, match="at least one"):
        ForcedChoice(rivals=0)


def test_one_table_of_several_tests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    earlier = tmp_path / "test_sft"
    earlier.mkdir()
    (earlier / "stage.json").write_text(json.dumps({"metrics": {"test/CIDEr-D": 12.34, "test/BLEU-4": 5.0}}))
    compare = CompareResults("ADPO", {"SFT": str(earlier)}, ["BLEU-4", "CIDEr-D", "never measured"])
    trainer = Trainer(callbacks=[compare], default_root_dir=tmp_path / "test_adpo", **QUIET)
    scores = trainer.test(Knowing(), TinyPairs(), verbose=False)[0]
    table = json.loads((tmp_path / "test_adpo" / "comparison.json").read_text())
    assert table["SFT"] == {"BLEU-4": 5.0, "CIDEr-D": 12.34}
    assert table["ADPO"]["CIDEr-D"] == pytest.approx(scores["test/CIDEr-D"])
    shown = capsys.readouterr().out
    assert "| SFT  |    5.0 |    12.3 |" in shown
    assert (tmp_path / "test_adpo" / "comparison.md").read_text().strip() in shown
    with pytest.raises(PairError, match="no finished stage"):
        Trainer(callbacks=[CompareResults("x", {"SFT": str(tmp_path)})], **QUIET).test(
            Knowing(), TinyPairs(), verbose=False
        )


def test_a_table_is_aligned_markdown() -> None:
    assert as_table({"a": {"x": 1.0}, "long": {"y": 22.5}}, ["x", "y"]).splitlines() == [
        "|      |   x |    y |",
        "|------|----:|-----:|",
        "| a    | 1.0 |    - |",
        "| long |   - | 22.5 |",
    ]
