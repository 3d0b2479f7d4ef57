"""Reference policies. Oracles: FrozenCopy, the SFT checkpoint, and the formula of the moving average."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tiny import TinyCaptioner, TinyPairs, TinySource
from helpers.training import Losses, assert_same, fit, host_state
from helpers.vlm_tiny import captioner, samples
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from lightning_idc.images.types import PairSample
from lightning_idc.methods.adpo.negatives import NegativeSource, RejectedCaptions
from lightning_idc.methods.adpo.preference import PreferenceOptimization
from lightning_idc.methods.adpo.preference_addon import concatenate_captions
from lightning_idc.methods.policy.cached_scores import CachedScores, checksums
from lightning_idc.methods.policy.references import AdaptersOff, FrozenCopy, MovingAverage, ReferencePolicy
from lightning_idc.models.addon import TrainingStep, addons_of
from lightning_idc.utils.errors import ConfigError, DataError


@pytest.fixture(scope="module")
def sft(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("sft")
    model = fit([], folder, max_epochs=3, enable_checkpointing=True)
    model.trainer.save_checkpoint(folder / "sft.ckpt")
    return str(folder / "sft.ckpt")


def start(sft: str, **options: Any) -> TinyCaptioner:
    return TinyCaptioner(init_from=sft, **options)


class FixedNegatives(NegativeSource):
    """Negatives that depend only on the pair, so that scores can be cached."""

    def draw(self, step: TrainingStep, count: int, generator: torch.Generator) -> RejectedCaptions:
        texts = {"red": "it turned green", "green": "it turned blue", "blue": "it turned red"}
        return RejectedCaptions([[texts[str(kind)]] * count for kind in step.batch.change_types])


class Adapted(TinyCaptioner):
    """A captioner with a minimal adapter: a bias that can be switched off."""

    def __init__(self, leak: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.leak = leak

    def build(self) -> None:
        fresh = self.net is None
        super().build()
        if fresh and self.net is not None:
            self.net.requires_grad_(self.leak)
            self.shift = nn.Parameter(torch.zeros(16))
            self.on = True
            self.net.look.register_forward_hook(lambda _m, _i, out: out + self.shift if self.on else None)

    @contextmanager
    def disable_adapters(self) -> Iterator[None]:
        self.on = False
        try:
            yield
        finally:
            self.on = True

    def trainable_non_adapter_parameters(self) -> list[str]:
        return [f"net.{name}" for name, p in self.net.named_parameters() if p.requires_grad]  # type: ignore[union-attr]


@pytest.mark.slow
def test_frozen_copy_does_not_change(sft: str, tmp_path: Path) -> None:
    model = fit([PreferenceOptimization()], tmp_path, start(sft))
    twin = addons_of(model)["preference"].reference.twin  # type: ignore[union-attr]
    before = torch.load(sft, weights_only=True)["state_dict"]
    assert_same(host_state(twin), before)
    assert not torch.equal(model.net.head.weight, before["net.head.weight"])
    assert not any(p.requires_grad for p in twin.parameters()) and not twin.training
    groups = {group["name"] for group in model.trainer.optimizers[0].param_groups}
    assert groups == {"vision", "language"}


@pytest.mark.slow
def test_adapters_off_equals_the_policy_without_adapters(sft: str, tmp_path: Path) -> None:
    losses, copied = Losses(), Losses()
    fit([PreferenceOptimization(reference=AdaptersOff()), losses], tmp_path, Adapted(init_from=sft))
    fit([PreferenceOptimization(reference=FrozenCopyOfSft(sft)), copied], tmp_path, Adapted(init_from=sft))
    assert losses.values == pytest.approx(copied.values, abs=1e-6)
    assert losses.values[-1] != losses.values[0]


class FrozenCopyOfSft(FrozenCopy):
    """Uses the SFT checkpoint without an adapter as the reference."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def setup(self, captioner: Any) -> None:
        self.twin = TinyCaptioner.load_from_checkpoint(self.path).requires_grad_(False).eval()


def test_adapters_off_rejects_trained_base_weights(sft: str, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"13 parameters outside of the adapters are trained, such as net\.backbone\.weight"
    ):
        fit([PreferenceOptimization(reference=AdaptersOff())], tmp_path, Adapted(leak=True, init_from=sft))


def test_moving_average_equals_its_formula(sft: str, tmp_path: Path) -> None:
    average = MovingAverage(0.5)
    weights: list[torch.Tensor] = []

    class Watch(Losses):
        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            weights.append(pl_module.net.head.weight.detach().clone())

    model = fit([PreferenceOptimization(reference=average), Watch()], tmp_path, start(sft), max_steps=3)
    expected = weights[0]
    for weight in [*weights[1:], model.net.head.weight.detach()]:
        expected = 0.5 * expected + 0.5 * weight
    torch.testing.assert_close(average.twin.net.head.weight, expected)
    with pytest.raises(ConfigError, match="decay is 2"):
        MovingAverage(2.0)


class WithRunningStatistic(TinyCaptioner):
    """A captioner whose network has a running statistic, like a batch norm."""

    def build(self) -> None:
        fresh = self.net is None
        super().build()
        if fresh and self.net is not None:
            self.net.register_buffer("running", torch.zeros(()))

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.net.running.add_(1)  # type: ignore[union-attr]


def test_moving_average_copies_buffers(tmp_path: Path) -> None:
    average = MovingAverage(0.5)
    model = fit([PreferenceOptimization(reference=average)], tmp_path, WithRunningStatistic(), max_steps=3)
    assert float(model.net.running) == 3 and torch.equal(average.twin.net.running, model.net.running)


@pytest.mark.slow
def test_cached_scores_equal_frozen_copy_and_are_computed_once(sft: str, tmp_path: Path) -> None:
    plain, cached, read = Losses(), Losses(), Losses()
    path = str(tmp_path / "scores.pt")
    fit([PreferenceOptimization(negatives=FixedNegatives()), plain], tmp_path, start(sft))
    first = CachedScores(FrozenCopy(), path)
    fit([PreferenceOptimization(negatives=FixedNegatives(), reference=first), cached], tmp_path, start(sft))
    again = CachedScores(None, path)
    fit([PreferenceOptimization(negatives=FixedNegatives(), reference=again), read], tmp_path, start(sft))
    assert cached.values == pytest.approx(plain.values, abs=1e-6)
    assert read.values == pytest.approx(plain.values, abs=1e-6)
    assert again.computed == 0 and first.stale == 0
    assert 32 < first.computed <= 16 * 4, "chosen captions change between epochs, most scores are reused"


@pytest.mark.slow
@pytest.mark.parametrize("on_disk", [False, True])
def test_resumed_run_uses_the_same_scores(sft: str, tmp_path: Path, on_disk: bool) -> None:
    def cached(run: str) -> CachedScores:
        return CachedScores(FrozenCopy(), str(tmp_path / f"{run}.pt") if on_disk else None)

    uninterrupted, first, rest = Losses(), Losses(), Losses()
    fit([PreferenceOptimization(reference=cached("whole")), uninterrupted], tmp_path, start(sft), max_epochs=3)
    saver = ModelCheckpoint(tmp_path, filename="half", every_n_train_steps=6, save_top_k=-1)
    killed = [PreferenceOptimization(reference=cached("killed")), first, saver]
    fit(killed, tmp_path, start(sft), max_epochs=3, max_steps=6, enable_checkpointing=True)
    resumed = cached("killed")
    ckpt = tmp_path / "half.ckpt"
    fit([PreferenceOptimization(reference=resumed), rest], tmp_path, start(sft), max_epochs=3, ckpt_path=ckpt)
    assert first.values + rest.values == uninterrupted.values
    callback_state = torch.load(ckpt, weights_only=True)["callbacks"].get("PreferenceOptimization[preference]", {})
    assert bool(callback_state.get("scores")) != on_disk
    assert 0 < resumed.computed < len(resumed._scores)


def test_cached_scores_reject_other_weights(sft: str, tmp_path: Path) -> None:
    path = str(tmp_path / "scores.pt")
    fit([PreferenceOptimization(reference=CachedScores(FrozenCopy(), path))], tmp_path, start(sft), max_steps=1)
    with pytest.raises(DataError, match="are stale: they come from weights"):
        fit([PreferenceOptimization(reference=CachedScores(FrozenCopy(), path))], tmp_path, TinyCaptioner())
    with pytest.raises(ConfigError, match="there are no scores"):
        fit([PreferenceOptimization(reference=CachedScores(None, str(tmp_path / "no.pt")))], tmp_path, start(sft))
    with pytest.raises(ConfigError, match="neither a reference nor a path"):
        CachedScores()
    with pytest.raises(ConfigError, match="cannot be cached"):
        CachedScores(MovingAverage())


@pytest.mark.slow
def test_cached_scores_of_other_pixels_are_recomputed(sft: str, tmp_path: Path) -> None:
    path = str(tmp_path / "scores.pt")
    options: dict[str, Any] = dict(captions_per_pair=1)
    fit(
        [PreferenceOptimization(negatives=FixedNegatives(), reference=CachedScores(FrozenCopy(), path))],
        tmp_path,
        start(sft, **options),
        max_epochs=1,
    )
    brighter = CachedScores(FrozenCopy(), path)
    data = TinyPairs(batch_size=4, seed=1, transform=one_brighter)
    fit(
        [PreferenceOptimization(negatives=FixedNegatives(), reference=brighter)],
        tmp_path,
        start(sft, **options),
        max_epochs=1,
        data=data,
    )
    assert (brighter.stale, brighter.computed) == (2 * 1, 0)
    refusing = CachedScores(None, path)
    with pytest.raises(DataError, match="no score in"):
        fit(
            [PreferenceOptimization(negatives=FixedNegatives(), reference=refusing)],
            tmp_path,
            start(sft, **options),
            max_epochs=1,
        )


def one_brighter(sample: PairSample, generator: torch.Generator) -> PairSample:
    """Change one byte of one pair."""
    if sample.id == "003":
        sample.after[2, 7, 7] += 1
    return sample


@pytest.mark.slow
def test_cached_scores_of_image_preference(sft: str, tmp_path: Path) -> None:
    path = str(tmp_path / "scores.pt")
    plain, read = Losses(), Losses()

    def run(reference: ReferencePolicy, losses: Losses) -> None:
        preference = PreferenceOptimization(negatives=FixedNegatives(), reference=reference, image_weight=1.0)
        fit([preference, losses], tmp_path, start(sft))

    run(FrozenCopy(), plain)
    first, again = CachedScores(FrozenCopy(), path), CachedScores(None, path)
    run(first, Losses())
    run(again, read)
    assert first.stale == 0 and read.values == pytest.approx(plain.values, abs=1e-6)


def test_cached_scores_of_another_prompt_are_recomputed() -> None:
    model = captioner("qwen2_5_vl").eval()
    cached = CachedScores(FrozenCopy())
    cached.setup(model)

    def scores_for(prompt: str) -> tuple[torch.Tensor, torch.Tensor]:
        model.hparams["prompt"] = prompt
        batch = model.collate(samples())
        step = TrainingStep(model, batch, 0, model.encode(batch))
        tokens, mask = batch.tokens, batch.caption_mask
        return cached.score(step, tokens, mask), model.score(step.features, tokens, mask)

    for prompt in ("what changed?", "where is it red?", "where is it red?"):
        torch.testing.assert_close(*scores_for(prompt))
    assert cached.stale == cached.computed > 0


@pytest.mark.parametrize("kind", [FrozenCopy, AdaptersOff])
def test_packed_scoring_equals_the_reference_at_the_start(kind: type[ReferencePolicy]) -> None:
    model = captioner("qwen2_5_vl", scoring="packed").eval()
    model.requires_grad_(kind is FrozenCopy)
    reference = kind()
    reference.setup(model)
    batch = model.collate(samples())
    rejected = ["red", "no", "it is a blue thing that moved far away from here"] * batch.tokens.shape[1]
    count = batch.tokens.shape[0] * batch.tokens.shape[1]
    tokens, mask = concatenate_captions(batch, model.tokenize(rejected[:count]))
    step = TrainingStep(model, batch, 0, model.encode(batch))
    with torch.no_grad():
        assert torch.equal(reference.score(step, tokens, mask), model.score(step.features, tokens, mask))


def test_checksums_depend_on_every_byte_and_the_shape() -> None:
    images = torch.stack([torch.stack([s.before, s.after]) for s in map(TinySource(4, 0).load, range(4))])
    base = checksums(images)
    assert len(set(base)) == 4
    flat = images[0].flatten()
    for index in range(len(flat)):
        other = flat.clone()
        other[index] = (int(other[index]) + 1) % 256
        assert checksums(other.view(1, 2, 3, 8, 8)) != base[:1]
    assert checksums(images.view(4, 2, 3, 4, 16)) != base
