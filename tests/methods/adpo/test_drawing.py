"""Negatives drawn for whole splits outside of training: they equal those that the same source draws in training."""

from __future__ import annotations

import pytest
import torch
from helpers.tiny import TinyCaptioner, TinyPairs
from helpers.training import fit

from lightning_idc.methods import RandomCaption, RewardMined, SelfSampled
from lightning_idc.methods.adpo.adversarial_retriever import AdversarialRetriever
from lightning_idc.methods.adpo.drawing import draw_all
from lightning_idc.methods.adpo.preference import PreferenceOptimization
from lightning_idc.methods.policy.rewards import LengthReward
from lightning_idc.utils.errors import ConfigError

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[TinyCaptioner, TinyPairs, str]:
    """Return a captioner after a few steps of ADPO, its data, and a checkpoint that includes the retriever."""
    folder = tmp_path_factory.mktemp("adpo")
    model = fit([PreferenceOptimization(), AdversarialRetriever(candidates=8)], folder)
    path = str(folder / "adpo.ckpt")
    model.trainer.save_checkpoint(path)
    return model.eval(), model.trainer.datamodule, path


@pytest.mark.slow
def test_a_retriever_of_a_checkpoint_draws_what_it_prefers(trained: tuple[TinyCaptioner, TinyPairs, str]) -> None:
    model, data, path = trained
    sharp = AdversarialRetriever(candidates=8, weights=path, temperature=1e-4)
    rows = draw_all(sharp, data, "train", 4, model, seed=2)
    assert all(len(set(row)) == 1 for row in rows), "at a temperature near 0 one candidate has all of the probability"
    flat = AdversarialRetriever(candidates=8, weights=path, temperature=float("inf"))
    assert draw_all(flat, data, "val", 2, model) == draw_all(RandomCaption(8), data, "val", 2)
    captions = set(data.train_captions())
    source = data.pairs_of("train")
    assert all(set(row) <= captions - set(source.captions(index)) for index, row in enumerate(rows))


@pytest.mark.slow
@pytest.mark.parametrize("source", [SelfSampled(), RewardMined(LengthReward(2, 4), samples=2, max_reward=None)])
def test_samples_of_the_captioner_are_wrong_captions(
    source: SelfSampled | RewardMined, trained: tuple[TinyCaptioner, TinyPairs, str]
) -> None:
    model, data, _ = trained
    rows = draw_all(source, data, "val", 2, model)
    references = data.pairs_of("val")
    assert all(len(row) == 2 and not set(row) & set(references.captions(n)) for n, row in enumerate(rows))
    with pytest.raises(ConfigError, match=f"{type(source).__name__} reads a captioner; expected one"):
        draw_all(source, data, "val")


def test_a_retriever_needs_a_captioner_and_its_weights(trained: tuple[TinyCaptioner, TinyPairs, str]) -> None:
    model, data, path = trained
    with pytest.raises(ConfigError, match="AdversarialRetriever reads a captioner"):
        draw_all(AdversarialRetriever(weights=path), data, "val")
    with pytest.raises(ConfigError, match="AdversarialRetriever has no weights"):
        draw_all(AdversarialRetriever(), data, "val", captioner=model)
