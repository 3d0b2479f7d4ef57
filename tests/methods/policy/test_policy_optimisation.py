"""Policy optimisation of a tiny captioner. Oracles: a reward for the right colour; steps computed directly."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from helpers.tiny import TinyCaptioner, TinySource
from helpers.training import Losses, assert_same, fit, host_state
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor

from lightning_idc.images.types import PairBatch, PairFeatures
from lightning_idc.methods.adpo.adversarial_retriever import AdversarialRetriever
from lightning_idc.methods.adpo.negatives import RejectedCaptions
from lightning_idc.methods.adpo.preference import PreferenceOptimization
from lightning_idc.methods.adpo.reward_mined import RewardMined
from lightning_idc.methods.policy.advantages import leave_one_out
from lightning_idc.methods.policy.policy import GroupRelative, SelfCritical
from lightning_idc.methods.policy.policy_addon import PolicyGradient
from lightning_idc.methods.policy.references import FrozenCopy, MovingAverage, NoReference
from lightning_idc.methods.policy.rewards import FactsReward, LengthReward, Reward, Texts, WeightedRewards
from lightning_idc.methods.policy.rollout import uniform_numbers
from lightning_idc.models.addon import TrainingStep, addons_of
from lightning_idc.utils.errors import ConfigError, DataError


class ColourReward(Reward):
    """Rewards a caption with 1 if it mentions the right colour and no other colour."""

    def __call__(self, pairs: PairBatch, texts: Texts) -> Tensor:
        colours = ("red", "green", "blue")
        self.texts = texts
        return torch.tensor(
            [
                [float([c for c in colours if c in text.split()] == [kind]) for text in row]
                for kind, row in zip(pairs.change_types, texts, strict=True)
            ]
        )


FAST = {"vision": 3.0, "language": 3.0}


@pytest.mark.slow
def test_training_raises_the_reward(sft: str, tmp_path: Path) -> None:
    def reward_of(model: Any) -> float:
        source = TinySource(16, 0)
        batch = model.eval().collate([source.load(i) for i in range(16)])
        generated = model.generate(model.encode(batch), samples=32, generator=torch.Generator().manual_seed(0))
        texts = [[caption.text for caption in generated[b * 32 : (b + 1) * 32]] for b in range(16)]
        return float(ColourReward()(batch, texts).mean())

    before = reward_of(fit([], tmp_path, TinyCaptioner(init_from=sft, learning_rates={"vision": 0, "language": 0})))
    dapo: dict[str, Any] = {"clip_high": 0.28, "averaging": "token", "filter_groups": True, "level": "sequence"}
    for callback, gain in (
        (GroupRelative(ColourReward(), samples=8), 0.15),
        (GroupRelative(ColourReward(), samples=8, iterations=2, **dapo), 0.15),
        # without scaling, the advantages and therefore the steps are smaller
        (SelfCritical(ColourReward(), samples=8), 0.05),
    ):
        model = fit([callback], tmp_path, TinyCaptioner(init_from=sft, learning_rates=FAST), max_epochs=12)
        assert reward_of(model) > before + gain, type(callback).__name__
        metrics = model.trainer.callback_metrics
        assert 0 <= metrics["train/reward"] <= 1 and metrics["train/completions/mean_length"] > 1
        assert {"train/reward_std", "train/frac_reward_zero_std", "train/clip_ratio/region_mean"} <= metrics.keys()


@pytest.mark.slow
def test_first_step_equals_reinforce_with_baseline(sft: str, tmp_path: Path) -> None:
    reward = ColourReward()
    callback = GroupRelative(reward, samples=6, scale="leave_one_out", averaging="constant")
    model = fit([callback], tmp_path, TinyCaptioner(init_from=sft), max_steps=1)
    addon: Any = addons_of(model)["policy"]
    addon._log = lambda *unused: None  # the run is over
    source = TinySource(4, 0)
    batch = model.eval().collate([source.load(i) for i in range(4)])
    step = TrainingStep(model, batch, 0, model.encode(batch))
    model.zero_grad()
    addon.objective(step).backward()
    actual = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    # the same samples, with each caption scored separately
    rewards = reward(batch, reward.texts)
    advantages = leave_one_out(rewards)
    key = f"{addon._seed}/{model.trainer.current_epoch}"
    uniforms = uniform_numbers(batch, 6, model.hparams["max_length"], key)
    drawn = model.decoder.sample(model.encode(batch), 6, uniforms=uniforms)
    assert [model.vocabulary.decode(ids) for ids in drawn.ids] == [text for row in reward.texts for text in row]
    model.zero_grad()
    total = torch.zeros(())
    for index, ids in enumerate(drawn.ids):
        b, k = divmod(index, 6)
        alone = model.collate([source.load(b)])
        log_probs = model.log_probs(model.encode(alone), torch.tensor([[[1, *ids]]]))
        total = total - advantages[b, k] * log_probs.sum() / (24 * model.hparams["max_length"])
    total.backward()
    assert float(advantages.abs().sum()) > 0
    for name, gradient in actual.items():
        torch.testing.assert_close(gradient, dict(model.named_parameters())[name].grad, rtol=1e-4, atol=1e-6, msg=name)


def test_self_critical_baseline_is_the_greedy_caption(sft: str, tmp_path: Path) -> None:
    reward = ColourReward()
    model = fit([SelfCritical(reward, samples=3)], tmp_path, TinyCaptioner(init_from=sft), max_steps=1)
    addon: Any = addons_of(model)["policy"]
    batch = model.eval().collate([TinySource(16, 0).load(i) for i in range(16)])
    rollout = addon._sample(TrainingStep(model, batch, 0, model.encode(batch)))
    greedy = [[caption.text] for caption in model.generate(model.encode(batch))]
    assert [row[-1:] for row in reward.texts] == greedy
    assert torch.equal(rollout.advantages, rollout.rewards - reward(batch, greedy))


@pytest.mark.slow
def test_weight_zero_equals_absent(sft: str, tmp_path: Path) -> None:
    absent = fit([], tmp_path, TinyCaptioner(init_from=sft))
    for options in ({}, {"add_to_loss": True}, {"beta": 0.1}):
        off = GroupRelative(ColourReward(), samples=3, weight=0.0, **options)
        assert_same(host_state(fit([off], tmp_path, TinyCaptioner(init_from=sft))), host_state(absent))


def test_samples_of_a_pair_do_not_depend_on_its_batch(sft: str, tmp_path: Path) -> None:
    model = fit([], tmp_path, TinyCaptioner(init_from=sft), max_steps=1).eval()
    samples = [TinySource(16, 0).load(i) for i in range(6)]
    for seed, sample in enumerate(samples):
        sample.meta["seed"] = seed

    def sample_ids(indices: list[int], key: str) -> list[list[int]]:
        batch = model.collate([samples[index] for index in indices])
        uniforms = uniform_numbers(batch, 2, model.hparams["max_length"], key)
        return model.decoder.sample(model.encode(batch), 2, uniforms=uniforms).ids

    whole_batch = sample_ids([0, 1, 2, 3, 4, 5], "0")
    assert sample_ids([4, 1], "0") == [*whole_batch[8:10], *whole_batch[2:4]]
    assert sample_ids([0, 1, 2, 3, 4, 5], "1") != whole_batch


@pytest.mark.slow
@pytest.mark.parametrize("iterations", [1, 3])
def test_resume_equals_uninterrupted_bit_for_bit(iterations: int, sft: str, tmp_path: Path) -> None:
    def callback() -> GroupRelative:
        return GroupRelative(ColourReward(), samples=4, beta=0.1, iterations=iterations)

    losses, resumed_losses = Losses(), Losses()
    uninterrupted = fit([callback(), losses], tmp_path, TinyCaptioner(init_from=sft), max_epochs=3)
    # in the middle of an epoch, and between two steps on the same samples
    saver = ModelCheckpoint(tmp_path, filename="half", every_n_train_steps=5, save_top_k=-1)
    fit([callback(), saver], tmp_path, TinyCaptioner(init_from=sft), max_steps=5, enable_checkpointing=True)
    torch.manual_seed(12345)
    resumed = fit(
        [callback(), resumed_losses], tmp_path, TinyCaptioner(), max_epochs=3, ckpt_path=tmp_path / "half.ckpt"
    )
    assert_same(dict(resumed.state_dict()), dict(uninterrupted.state_dict()))
    assert resumed_losses.values == losses.values[5:]


@pytest.mark.slow
def test_samples_are_used_for_the_number_of_iterations(sft: str, tmp_path: Path) -> None:
    calls: list[list[str]] = []

    class Counting(ColourReward):
        def __call__(self, pairs: PairBatch, texts: Texts) -> Tensor:
            calls.append(pairs.ids)
            return super().__call__(pairs, texts)

    model = TinyCaptioner(init_from=sft, learning_rates=FAST)
    fit([GroupRelative(Counting(), samples=8, iterations=2)], tmp_path, model, max_epochs=6)
    assert len(calls) == 12
    # after the first step, the policy differs from the one that sampled, and ratios may be clipped
    assert {"train/clip_ratio/region_mean"} <= model.trainer.callback_metrics.keys()
    with pytest.raises(ConfigError, match="accumulate_grad_batches would merge"):
        callback = GroupRelative(Counting(), samples=8, iterations=2)
        fit([callback], tmp_path, TinyCaptioner(init_from=sft), accumulate_grad_batches=2)


@pytest.mark.slow
def test_kl_divergence_keeps_the_policy_near_the_reference(sft: str, tmp_path: Path) -> None:
    def train_with(beta: float, reference: Any = None) -> tuple[float, Any]:
        model = TinyCaptioner(init_from=sft, learning_rates=FAST)
        fit([GroupRelative(ColourReward(), samples=4, beta=beta, reference=reference)], tmp_path, model, max_epochs=6)
        start = torch.load(sft, weights_only=True)["state_dict"]
        distance = sum(float((value - start[name]).abs().sum()) for name, value in host_state(model).items())
        return distance, model.trainer.callback_metrics

    (free, metrics), (kl_distance, kl_metrics), (average_distance, _) = (
        train_with(0.0),
        train_with(5.0, FrozenCopy()),
        train_with(5.0, MovingAverage(0.0)),
    )
    assert "train/kl" not in metrics and kl_metrics["train/kl"] > 0
    assert kl_distance < 0.9 * free and kl_distance < average_distance
    with pytest.raises(ConfigError, match="NoReference has no log-probabilities per token"):
        train_with(0.1, NoReference())


@pytest.mark.slow
def test_add_to_loss_with_preference_and_adversarial_retriever(sft: str, tmp_path: Path) -> None:
    drawn: list[tuple[list[list[str]], list[list[str]], Tensor]] = []

    class Watched(RewardMined):
        def draw(self, step: TrainingStep, count: int, generator: torch.Generator) -> RejectedCaptions:
            negatives = super().draw(step, count, generator)
            rewards = ColourReward()(step.batch, negatives.texts)
            drawn.append((step.batch.references, negatives.texts, rewards))
            return negatives

    callbacks = [
        GroupRelative(ColourReward(), samples=4, add_to_loss=True, weight=0.5),
        PreferenceOptimization(negatives=Watched(ColourReward(), samples=8)),
        AdversarialRetriever(candidates=6, fraction=0.5),
    ]
    model = fit(callbacks, tmp_path, TinyCaptioner(init_from=sft), max_epochs=3)
    metrics = model.trainer.callback_metrics
    assert {
        "train/policy/policy_loss",
        "train/reward",
        "train/rewards/margins",
        "train/retriever/reward",
    } <= metrics.keys()
    pool = {text for i in range(16) for text in TinySource(16, 0).captions(i)}
    texts = [text for _, rows, _ in drawn for row in rows for text in row]
    assert any(text not in pool for text in texts), "some negatives are not training captions"
    for references, rows, rewards in drawn:
        for references_of_pair, row in zip(references, rows, strict=True):
            assert not set(references_of_pair) & set(row)
        assert float(rewards.max()) < 1
    assert isinstance(addons_of(model)["policy"], PolicyGradient)
    twice = [GroupRelative(ColourReward()), PreferenceOptimization()]
    with pytest.raises(ConfigError, match="all replace the training loss"):
        fit(twice, tmp_path, TinyCaptioner(init_from=sft))


def test_rejects_invalid_arguments(sft: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="FactsReward needs scene facts, which TinyPairs does not have"):
        fit([GroupRelative(FactsReward())], tmp_path, TinyCaptioner(init_from=sft))
    for options, match in (
        ({"samples": 1}, "samples is 1; expected at least 2"),
        ({"iterations": 0}, "iterations is 0"),
        ({"temperature": 0.0}, "temperature is 0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"beta": -1.0}, "beta is -1"),
        ({"clip": -0.2}, "clip is -0.2"),
        ({"clip_high": -0.1}, "clip_high is -0.1"),
        ({"caption_weight": -1.0}, "caption_weight is -1"),
        ({"scale": "grup"}, "scale is 'grup'; expected one of group, batch, none, leave_one_out"),
        ({"level": "caption"}, "level is 'caption'; expected one of token, sequence"),
        ({"averaging": "tokens"}, "averaging is 'tokens'; expected one of sample, token, constant"),
        ({"add_to_loss": True, "caption_weight": 1.0}, "leave caption_weight at 0"),
    ):
        with pytest.raises(ConfigError, match=match):
            GroupRelative(ColourReward(), **options)  # type: ignore[arg-type]

    class Broken(Reward):
        def __call__(self, pairs: PairBatch, texts: Texts) -> Tensor:
            return torch.full((len(texts), len(texts[0])), float("nan"))

    with pytest.raises(DataError, match="Broken returned rewards of shape"):
        fit([GroupRelative(Broken())], tmp_path, TinyCaptioner(init_from=sft))
    with pytest.raises(DataError, match="Broken returned rewards of shape"):
        mined = PreferenceOptimization(negatives=RewardMined(Broken()))
        fit([mined], tmp_path, TinyCaptioner(init_from=sft))
    with pytest.raises(ConfigError, match="samples is 0; expected at least 1"):
        RewardMined(LengthReward(1, 2), samples=0)
    with pytest.raises(ConfigError, match="normalise is 'grup'; expected one of group, batch, none"):
        WeightedRewards([ColourReward()], normalise="grup")  # type: ignore[arg-type]


def test_caption_weight_adds_the_caption_loss(sft: str, tmp_path: Path) -> None:
    model = fit([GroupRelative(ColourReward(), samples=4)], tmp_path, TinyCaptioner(init_from=sft), max_steps=1)
    addon: Any = addons_of(model)["policy"]
    addon._log = lambda *unused: None
    batch = model.eval().collate([TinySource(4, 0).load(i) for i in range(4)])
    step = TrainingStep(model, batch, 0, model.encode(batch))
    alone = addon.objective(step)
    addon.caption_weight = 0.25
    torch.testing.assert_close(addon.objective(step) - alone, 0.25 * model.caption_loss(step.features, batch))


class CountsTokens(TinyCaptioner):
    """Computes log-probabilities of unmasked tokens only, like VLMCaptioner, and counts them."""

    num_tokens: ClassVar[list[int]] = []

    def log_probs(self, features: PairFeatures, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        log_probs = super().log_probs(features, tokens, mask)
        self.num_tokens.append(tokens.numel() if mask is None else int(mask.sum()))
        return log_probs if mask is None else log_probs * mask


def test_padding_is_not_scored(sft: str, tmp_path: Path) -> None:
    model = CountsTokens(init_from=sft)
    callback = GroupRelative(ColourReward(), samples=4, beta=0.1, iterations=2)
    CountsTokens.num_tokens.clear()
    fit([callback], tmp_path, model, max_steps=1)
    rollout = addons_of(model)["policy"].rollout
    assert rollout is not None and not bool(rollout.mask[..., 1:].all())
    assert CountsTokens.num_tokens == [int(rollout.mask.sum())] * 2


def test_generate_returns_samples(sft: str, tmp_path: Path) -> None:
    model = fit([], tmp_path, TinyCaptioner(init_from=sft), max_steps=1).eval()
    batch = model.collate([TinySource(16, 0).load(i) for i in range(2)])
    features = model.encode(batch)
    actual = model.generate(features, samples=3, generator=torch.Generator().manual_seed(1), change_scores=True)
    drawn = model.decoder.sample(features, 3, generator=torch.Generator().manual_seed(1))
    assert [caption.text for caption in actual] == [model.vocabulary.decode(ids) for ids in drawn.ids]
    for caption, ids in zip(actual[:3], drawn.ids, strict=False):
        token_log_probs = model.log_probs(features, torch.tensor([[[1, *ids]]] * 2))[0, 0]
        assert caption.log_prob == pytest.approx(float(token_log_probs.sum().detach()) / len(ids), abs=1e-5)
    cold = model.generate(features, samples=2, temperature=1e-4)
    assert [caption.text for caption in cold[::2]] == [
        caption.text for caption in model.generate(features, num_beams=1)
    ]
    with pytest.raises(ConfigError, match="give one of them"):
        model.generate(features, samples=2, num_beams=3)


@pytest.mark.parametrize("kind", [GroupRelative, SelfCritical])
def test_configuration_has_all_options(kind: type) -> None:
    from jsonargparse import ArgumentParser

    parser = ArgumentParser()
    parser.add_class_arguments(kind, "callback")
    expected = {
        "reward",
        "samples",
        "beta",
        "reference",
        "temperature",
        "top_p",
        "iterations",
        "add_to_loss",
        "dropout",
        "weight",
    }
    actual = set(vars(parser.get_defaults().callback))
    assert expected <= actual and "surrogate" not in actual
