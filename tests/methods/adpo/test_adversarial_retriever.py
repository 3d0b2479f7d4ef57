"""Adversarial negatives (Eq. 5 to 7). Oracles: DPO with random negatives; a reference with known hard negatives."""

from __future__ import annotations

import json
import math
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tiny import TinyCaptioner, TinySource
from helpers.training import Losses, assert_same, fit, host_state
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn

from lightning_idc.images.types import PairFeatures
from lightning_idc.methods.adpo.adversarial_retriever import AdversarialRetriever, Retriever, memory_width
from lightning_idc.methods.adpo.negatives import RandomCaption
from lightning_idc.methods.adpo.pool import CaptionPool, sample_negatives
from lightning_idc.methods.adpo.preference import PreferenceOptimization
from lightning_idc.methods.adpo.reinforce import LeaveOneOut
from lightning_idc.methods.adpo.retriever import EncoderHeads, FeatureHeads
from lightning_idc.methods.policy.references import ReferencePolicy
from lightning_idc.models.addon import TrainingStep, addons_of
from lightning_idc.utils.errors import CheckpointError, ConfigError

FAST = {"addons.retriever": 30.0}


def retriever_of(model: Any) -> Retriever:
    addon = addons_of(model)["retriever"]
    assert isinstance(addon, Retriever)
    return addon


@pytest.mark.slow
def test_uniform_retriever_equals_dpo_with_random_negatives_bit_for_bit(tmp_path: Path) -> None:
    random, uniform, sharp = Losses(), Losses(), Losses()
    dpo = fit([PreferenceOptimization(negatives=RandomCaption(6)), random], tmp_path)
    flat = AdversarialRetriever(candidates=6, temperature=float("inf"), alignment=0.0)
    adpo = fit([PreferenceOptimization(), flat, uniform], tmp_path)
    assert_same(host_state(adpo), host_state(dpo))
    fit([PreferenceOptimization(), AdversarialRetriever(candidates=6), sharp], tmp_path)
    # the logged loss includes the retriever's term, whose baseline starts at 0
    assert uniform.values[0] == pytest.approx(sharp.values[0], abs=5.0) and sharp.values != random.values


@pytest.mark.slow
def test_weight_zero_equals_absent(tmp_path: Path) -> None:
    absent = fit([PreferenceOptimization()], tmp_path)
    off = fit([PreferenceOptimization(), AdversarialRetriever(weight=0.0)], tmp_path)
    assert_same(host_state(off), host_state(absent))


class UnlikelyPaint(ReferencePolicy):
    """Gives captions with the word "paint" a low probability, which makes them the hard negatives."""

    def score(self, step: TrainingStep, tokens: Tensor, mask: Tensor) -> Tensor:
        captioner: Any = step.module
        paint = captioner.tokenize(["paint"])[0][1]
        with torch.no_grad():
            return captioner.score(step.features, tokens, mask) - 20.0 * (tokens == paint).any(-1)


@pytest.mark.slow
@pytest.mark.parametrize("baseline", [None, LeaveOneOut()])
def test_retriever_learns_to_draw_hard_negatives(tmp_path: Path, baseline: Any) -> None:
    model = TinyCaptioner(learning_rates={"vision": 0.0, "language": 0.0, **FAST}, captions_per_pair=1)
    callback = AdversarialRetriever(scale=4.0, temperature=1.0, baseline=baseline, alignment=0.0)
    fit([PreferenceOptimization(reference=UnlikelyPaint()), callback], tmp_path, model, max_epochs=12)
    retriever = retriever_of(model)
    hard = torch.tensor(["paint" in text for text in retriever.pool.texts])
    batch = model.eval().collate([TinySource(6, 0).load(i) for i in range(6)])
    step = TrainingStep(model, batch, 0, model.encode(batch))
    indices = torch.arange(len(retriever.pool))
    allowed = retriever.pool.is_negative(indices, batch.references)
    _, log_probs = sample_negatives(retriever.logits(step, indices), allowed, 1)
    mass = (log_probs.exp() * hard).sum(-1)
    # 2 of the 6 captions that are wrong for a pair mention paint
    assert (allowed & hard).sum(1).tolist() == [2] * 6 and allowed.sum(1).tolist() == [6] * 6
    assert mass.mean() > 0.8 and (mass > 0.5).all(), mass
    metrics = model.trainer.callback_metrics
    assert metrics["train/retriever/effective_pool"] < 5
    # Jensen: the mean of the effective numbers is at least the exponential of the mean entropy
    assert metrics["train/retriever/effective_pool"] >= metrics["train/retriever/entropy"].exp() - 1e-5


def test_retriever_parameters_train_at_their_own_learning_rate(tmp_path: Path) -> None:
    model = fit(
        [PreferenceOptimization(), AdversarialRetriever()], tmp_path, TinyCaptioner(learning_rates=FAST), max_steps=2
    )
    groups = {group["name"]: group for group in model.trainer.optimizers[0].param_groups}
    assert groups["addons.retriever"]["lr"] == pytest.approx(30 * groups["language"]["lr"])
    parameters = dict(retriever_of(model).named_parameters())
    assert {id(p) for p in groups["addons.retriever"]["params"]} == {id(p) for p in parameters.values()}
    assert [name for name, p in parameters.items() if p.grad is None or not p.grad.abs().sum()] == []


def test_memory_width_is_measured_on_the_device_of_the_weights(tmp_path: Path) -> None:
    """During setup, module.device is the accelerator already, but the weights are still on the CPU."""
    model = fit([], tmp_path, max_epochs=0)
    sample = model.data.pairs_of("train").load(0)
    width = memory_width(model, sample)
    model._device = torch.device("meta")
    assert memory_width(model, sample) == width


def test_retriever_loss_does_not_change_the_policy(tmp_path: Path) -> None:
    def step(alignment: float) -> Any:
        return fit([PreferenceOptimization(), AdversarialRetriever(alignment=alignment)], tmp_path, max_steps=1)

    assert_same(host_state(step(0.0)), host_state(step(3.0)))


@pytest.mark.slow
def test_callback_order_does_not_matter_and_no_weight_is_stored_twice(tmp_path: Path) -> None:
    callbacks = [PreferenceOptimization(), AdversarialRetriever(candidates=6)]
    first = fit(callbacks, tmp_path / "first", max_steps=3)
    callbacks = [AdversarialRetriever(candidates=6), PreferenceOptimization()]
    second = fit(callbacks, tmp_path / "second", max_steps=3)
    # compare the drawn negatives before their effect, so that a failure shows where the difference starts
    records = [json.loads((tmp_path / name / "negatives.json").read_text()) for name in ("first", "second")]
    assert {id: row["negative"] for id, row in records[0].items()} == {
        id: row["negative"] for id, row in records[1].items()
    }
    assert_same(dict(retriever_of(first).state_dict()), dict(retriever_of(second).state_dict()))
    assert_same(host_state(first), host_state(second))
    assert not any(name.startswith("aux_addons.preference.") and "matcher" in name for name in first.state_dict())


def test_gradients_of_policy_and_retriever_are_clipped_separately(tmp_path: Path) -> None:
    def step(alignment: float) -> Any:
        model = TinyCaptioner(captions_per_pair=2, optimizer=partial(torch.optim.SGD, lr=1.0))
        callbacks = [PreferenceOptimization(), AdversarialRetriever(alignment=alignment)]
        return fit(callbacks, tmp_path, model, max_steps=1, gradient_clip_val=0.05)

    # under one norm for both, the policy's SGD step would shrink as the retriever's gradient grows
    assert_same(host_state(step(0.1)), host_state(step(300.0)))


@pytest.mark.slow
def test_collapse_warning_but_not_with_the_defaults(tmp_path: Path) -> None:
    fit([PreferenceOptimization(), AdversarialRetriever()], tmp_path, max_epochs=12)
    assert AdversarialRetriever().alignment == 1.0 and AdversarialRetriever().scale == 10.0
    encoded = AdversarialRetriever("some.ckpt")
    assert encoded.alignment == 0.0 and encoded.scale == 100.0, "the paper's values with an encoder"
    with pytest.warns(UserWarning, match="effective number"):
        sharp = AdversarialRetriever(scale=3000.0, alignment=0.0, candidates=48)
        fit([PreferenceOptimization(), sharp], tmp_path, max_epochs=12)


@pytest.mark.slow
def test_resume_equals_uninterrupted_bit_for_bit(tmp_path: Path) -> None:
    def callbacks() -> list[Any]:
        return [PreferenceOptimization(), AdversarialRetriever(candidates=6)]

    whole_losses, resumed_losses = Losses(), Losses()
    whole = fit([*callbacks(), whole_losses], tmp_path, max_epochs=3)
    saver = ModelCheckpoint(tmp_path, filename="half", every_n_train_steps=6, save_top_k=-1)
    fit([*callbacks(), saver], tmp_path, max_steps=6, enable_checkpointing=True)
    torch.manual_seed(12345)
    resumed = fit([*callbacks(), resumed_losses], tmp_path, max_epochs=3, ckpt_path=tmp_path / "half.ckpt")
    assert_same(dict(resumed.state_dict()), dict(whole.state_dict()))
    assert resumed_losses.values == whole_losses.values[6:]
    assert float(retriever_of(resumed).baseline.mean) != 0


@pytest.mark.slow
def test_alignment_loss_matches_captions_to_pairs(tmp_path: Path) -> None:
    model = TinyCaptioner(learning_rates={"addons.retriever": 10.0})
    callback = AdversarialRetriever(alignment=1.0, scale=10.0, temperature=1.0)
    fit([PreferenceOptimization(), callback], tmp_path, model, max_epochs=15)
    matcher, pool = retriever_of(model).matcher, retriever_of(model).pool
    batch = model.eval().collate([TinySource(3, 600).load(i) for i in range(3)])
    with torch.no_grad():
        pairs = matcher.embed_pairs(model.encode(batch), batch.images)
        captions = matcher.embed_captions(pool.indices_of([captions[0] for captions in batch.references]))
    assert (pairs @ captions.T).argmax(1).tolist() == [0, 1, 2]


def test_retriever_loads_weights_of_another_run(tmp_path: Path) -> None:
    first = fit([PreferenceOptimization(), AdversarialRetriever()], tmp_path, max_steps=2, enable_checkpointing=True)
    first.trainer.save_checkpoint(tmp_path / "adpo.ckpt")
    again = AdversarialRetriever(weights=str(tmp_path / "adpo.ckpt"))
    second = fit([PreferenceOptimization(), again], tmp_path, max_steps=0)
    assert_same(dict(retriever_of(second).state_dict()), dict(retriever_of(first).state_dict()))
    with pytest.raises(CheckpointError, match="no retriever called 'other'"):
        named = AdversarialRetriever(weights=str(tmp_path / "adpo.ckpt"), name="other")
        fit([PreferenceOptimization(), named], tmp_path, max_steps=0)


def test_rejects_invalid_arguments(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="add that callback too"):
        fit([AdversarialRetriever()], tmp_path)
    with pytest.raises(ConfigError, match="candidates is 1"):
        AdversarialRetriever(candidates=1)
    for temperature in (0, math.nan):
        with pytest.raises(ConfigError, match=f"temperature is {temperature}"):
            AdversarialRetriever(temperature=temperature)
    with pytest.raises(ConfigError, match="scale is -1"):
        AdversarialRetriever(scale=-1)
    with pytest.raises(ConfigError, match="alignment is -1"):
        AdversarialRetriever(alignment=-1)


class FakeEncoder(nn.Module):
    """A PairTextEncoder of three words and three colours that counts the captions it embeds."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.num_embedded = 0

    def embed_pairs(self, images: Tensor) -> Tensor:
        change = (images[:, 1].float() - images[:, 0].float()).mean((-1, -2)) * self.scale
        return nn.functional.normalize(change, dim=-1)

    def embed_captions(self, captions: Any) -> Tensor:
        self.num_embedded += len(captions)
        return (
            torch.tensor([[float(word in text) for word in ("red", "green", "blue")] for text in captions]) * self.scale
        )


@pytest.mark.parametrize("trained", [False, True])
def test_encoder_heads_start_at_the_encoder_and_embed_captions_once(trained: bool) -> None:
    texts = [caption for i in range(3) for caption in TinySource(3, 0).captions(i)]
    encoder = FakeEncoder()
    heads = EncoderHeads(texts, encoder, train_encoder=trained)
    samples = [TinySource(3, 0).load(i) for i in range(3)]
    images = torch.stack([torch.stack([sample.before, sample.after]) for sample in samples])
    for _ in range(3):
        pairs = heads.embed_pairs(PairFeatures(torch.zeros(3, 1, 1)), images)
        similarity = pairs @ heads.embed_captions(torch.arange(9)).T
    torch.testing.assert_close(similarity, encoder.embed_pairs(images) @ encoder.embed_captions(texts).T)
    assert encoder.num_embedded == 18
    similarity[0, 1].backward()
    assert (encoder.scale.grad is not None) == trained
    assert heads.pairs.weight.grad is not None and heads.captions.weight.grad is not None


def test_encoder_heads_remove_padding_of_mixed_sizes() -> None:
    torch.manual_seed(0)
    heads = EncoderHeads(["red", "blue"], FakeEncoder(), image_size=(6, 6))
    pairs = [torch.randint(1, 255, (1, 2, 3, height, width), dtype=torch.uint8) for height, width in ((8, 12), (12, 9))]
    features = PairFeatures(torch.zeros(2, 1, 1))
    padded = torch.cat([nn.functional.pad(one, (0, 12 - one.shape[-1], 0, 12 - one.shape[-2])) for one in pairs])
    embeddings = heads.embed_pairs(features, padded, torch.tensor([[8, 12], [12, 9]]))
    alone = torch.cat([heads.embed_pairs(features, one) for one in pairs])
    torch.testing.assert_close(embeddings, alone)
    assert not torch.allclose(heads.embed_pairs(features, padded), alone)
    with pytest.raises(ConfigError, match=r"set data\.image_size"):
        EncoderHeads(["red"], FakeEncoder()).embed_pairs(features, padded, torch.tensor([[8, 12], [12, 9]]))


def test_caption_embedding_is_the_sum_of_its_unigrams_and_bigrams() -> None:
    texts = ["a red cube", "it moved", "a red cube moved far"]
    heads = FeatureHeads(texts, memory=4, width=8)
    terms = [["a", "red", "cube", "a red", "red cube"], ["it", "moved", "it moved"]]
    term_counts: dict[str, int] = {}
    for text in texts:
        words = text.split()
        for term in [*words, *(f"{a} {b}" for a, b in pairwise(words))]:
            term_counts[term] = term_counts.get(term, 0) + 1
    order = sorted(term_counts, key=lambda term: -term_counts[term])  # stable, in order of occurrence
    rows = [heads.words.weight[torch.tensor([order.index(t) for t in own])].sum(0) for own in terms]
    expected = nn.functional.normalize(heads.captions(torch.stack(rows)), dim=-1)
    torch.testing.assert_close(heads.embed_captions(torch.tensor([0, 1])), expected)
    torch.testing.assert_close(heads.embed_captions(torch.tensor([2, 1, 0]))[[2, 1]], expected)


def test_feature_heads_ignore_masked_features() -> None:
    heads = FeatureHeads(["one", "two"], memory=4)
    memory = torch.randn(2, 5, 4)
    mask = torch.tensor([[True] * 3 + [False] * 2] * 2)
    images = torch.zeros(2, 2, 3, 8, 8, dtype=torch.uint8)
    cut = heads.embed_pairs(PairFeatures(memory[:, :3]), images)
    torch.testing.assert_close(heads.embed_pairs(PairFeatures(memory, mask), images), cut)


def test_shared_references_are_not_negatives() -> None:
    pool = CaptionPool(["a", "b"])
    indices = pool.indices_of(["a", "b", "a"])
    assert pool.is_negative(indices, [["a"], ["b"], ["a", "b"]], allow_none=True).tolist() == [
        [False, True, False],
        [True, False, True],
        [False, False, False],
    ]
