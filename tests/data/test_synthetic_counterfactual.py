"""Planted counterfactual captions. Oracle: the ground truth of the scene, judged by the grammar, not by the writer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lightning_idc.data.synthetic import SyntheticSource
from lightning_idc.data.synthetic.cache import Key
from lightning_idc.data.synthetic.claims import claim_of
from lightning_idc.data.synthetic.counterfactual import counterfactuals, false_claims, is_false
from lightning_idc.data.synthetic.facts import change_accuracy
from lightning_idc.data.synthetic.grammar import parse
from lightning_idc.data.synthetic.modes import load_mode
from lightning_idc.data.synthetic.phrases import sentences
from lightning_idc.nn.vocabulary import words_of
from lightning_idc.utils.errors import ConfigError


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rendered")


@pytest.fixture(scope="module", params=["clevr_change", "clevr_dc"])
def source(request: pytest.FixtureRequest, root: Path) -> SyntheticSource:
    mode = request.param
    return SyntheticSource(Key(mode, "train", 40, 32, 32, 0, load_mode(mode).WORLD), root, progress=False)


def draw(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.slow
def test_references_are_true_and_counterfactuals_false(source: SyntheticSource) -> None:
    kinds = set()
    for index in range(len(source)):
        truth = source.ground_truth(index)
        assert not any(is_false(caption, truth) for caption in source.captions(index))
        planted = counterfactuals(truth, 6, draw(index))
        assert len(planted) == len(set(planted)) == 6
        for caption in planted:
            assert False in change_accuracy(caption, truth).values()
            assert caption not in source.captions(index)
            kinds.add(parse(caption).kind)
    assert {"color", "texture", "add", "drop", "move"} <= kinds


def test_one_fact_is_wrong_at_a_time(source: SyntheticSource) -> None:
    for index in range(len(source)):
        truth = source.ground_truth(index)
        if not truth["changes"]:
            continue
        claim = claim_of(truth["changes"][0])
        for other in false_claims(truth):
            different = [name for name in claim.__slots__ if getattr(other, name) != getattr(claim, name)]
            assert len(different) == 1, (claim, other)
            assert parse(sentences(other)[0]).thing == other.thing


def test_counterfactuals_use_training_vocabulary(source: SyntheticSource) -> None:
    known = {word for index in range(len(source)) for caption in source.captions(index) for word in words_of(caption)}
    planted = {
        w for i in range(len(source)) for c in counterfactuals(source.ground_truth(i), 4, draw(i)) for w in words_of(c)
    }
    assert planted <= known


def test_equal_seeds_give_equal_counterfactuals(source: SyntheticSource) -> None:
    truth = source.ground_truth(3)
    assert counterfactuals(truth, 5, draw(7)) == counterfactuals(truth, 5, draw(7))
    assert counterfactuals(truth, 5, draw(7)) != counterfactuals(truth, 5, draw(8))


def test_omnidiff_reports_are_rejected(root: Path) -> None:
    source = SyntheticSource(Key("omnidiff", "train", 1, 32, 32, 0, load_mode("omnidiff").WORLD), root, progress=False)
    with pytest.raises(ConfigError, match="modes clevr_change or clevr_dc"):
        counterfactuals(source.ground_truth(0), 1, draw())
