"""The rules that make add-ons composable; each rule has a test."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tiny import (
    CrudeObjectiveCallback,
    GuessColor,
    GuessColorCallback,
    NoiselessCallback,
    TinyCaptioner,
    TinyPairs,
)
from helpers.training import QUIET, assert_same, fit, host_state
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, StochasticWeightAveraging, WeightAveraging
from torch import Tensor, nn

from lightning_idc.models.addon import Addon, TrainingStep, addons_of, remove_addons
from lightning_idc.models.addon_callback import AddonCallback
from lightning_idc.utils.errors import ConfigError


@pytest.mark.slow
def test_weight_zero_equals_absent_bit_for_bit(tmp_path: Path) -> None:
    absent = fit([], tmp_path)
    off = fit([GuessColorCallback("color", weight=0.0)], tmp_path)
    on = fit([GuessColorCallback("color", weight=0.5)], tmp_path)
    assert_same(host_state(off), host_state(absent))
    assert any(not torch.equal(a, b) for a, b in zip(host_state(on).values(), host_state(absent).values(), strict=True))


def test_weight_zero_equals_absent_where_a_loss_is_infinite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = fit([], tmp_path)
    losses = GuessColor.losses
    monkeypatch.setattr(
        GuessColor, "losses", lambda addon, step: {name: value / 0.0 for name, value in losses(addon, step).items()}
    )
    assert_same(host_state(fit([GuessColorCallback("color", weight=0.0)], tmp_path)), host_state(absent))


def test_every_addon_parameter_is_trained_in_a_group_of_its_own(tmp_path: Path) -> None:
    model = TinyCaptioner(learning_rates={"addons.color": 10.0})
    fit([GuessColorCallback("color")], tmp_path, model, max_steps=1)
    addon = addons_of(model)["color"]
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in addon.parameters())
    groups = {g["name"]: g for g in model.trainer.optimizers[0].param_groups}
    assert set(groups) == {"vision", "language", "addons.color"}
    assert {id(p) for p in groups["addons.color"]["params"]} == {id(p) for p in addon.parameters()}
    assert groups["addons.color"]["lr"] == pytest.approx(10 * groups["language"]["lr"])


def test_every_host_parameter_gets_a_gradient(tmp_path: Path) -> None:
    model = fit([], tmp_path, max_steps=1)
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum()] == []


@pytest.mark.slow
@pytest.mark.parametrize("callbacks", [[], [GuessColorCallback]])
def test_resume_equals_uninterrupted_bit_for_bit(tmp_path: Path, callbacks: list[type[AddonCallback]]) -> None:
    def make() -> list[Callback]:
        return [kind("color") for kind in callbacks]

    whole = fit(make(), tmp_path, max_epochs=3)
    # an epoch has 4 batches, so step 6 is in the middle of the second epoch
    saver = ModelCheckpoint(tmp_path, filename="half", every_n_train_steps=6, save_top_k=-1)
    fit([*make(), saver], tmp_path, max_steps=6, enable_checkpointing=True)
    torch.manual_seed(12345)
    resumed = fit(make(), tmp_path, max_epochs=3, ckpt_path=tmp_path / "half.ckpt")
    assert_same(dict(resumed.state_dict()), dict(whole.state_dict()))


def test_attaching_twice_is_attaching_once(tmp_path: Path) -> None:
    model = fit([GuessColorCallback("color")], tmp_path, max_steps=1)
    first = {name: id(p) for name, p in model.named_parameters()}
    fit([GuessColorCallback("color")], tmp_path, model, max_steps=1)
    assert {name: id(p) for name, p in model.named_parameters()} == first


def test_two_addons_of_one_class(tmp_path: Path) -> None:
    model = fit([GuessColorCallback("one"), GuessColorCallback("two", weight=0.5)], tmp_path)
    one, two = addons_of(model)["one"], addons_of(model)["two"]
    assert not torch.equal(one.head.weight, two.head.weight)
    with pytest.raises(ConfigError, match="two add-ons are called 'one'"):
        Trainer(callbacks=[GuessColorCallback("one"), _Renamed("one")], **QUIET).fit(TinyCaptioner(), TinyPairs())


class _Renamed(GuessColorCallback):
    """Another class, so that Lightning's own check for duplicate state keys does not raise first."""


@pytest.mark.slow
def test_save_with_and_load_without(tmp_path: Path) -> None:
    model = fit([GuessColorCallback("color")], tmp_path, enable_checkpointing=True)
    model.trainer.save_checkpoint(tmp_path / "with.ckpt")
    alone = TinyCaptioner.load_from_checkpoint(tmp_path / "with.ckpt")
    assert_same(dict(alone.state_dict()), host_state(model))
    with_other = fit(
        [GuessColorCallback("other")], tmp_path, TinyCaptioner(init_from=str(tmp_path / "with.ckpt")), max_steps=0
    )
    assert_same(host_state(with_other), host_state(model))
    report = Trainer(**QUIET).test(TinyCaptioner(), TinyPairs(), ckpt_path=tmp_path / "with.ckpt", verbose=False)
    assert report[0]["test/CIDEr-D"] >= 0


def test_save_without_and_test_with(tmp_path: Path) -> None:
    model = fit([], tmp_path, enable_checkpointing=True)
    model.trainer.save_checkpoint(tmp_path / "without.ckpt")
    fresh = TinyCaptioner()
    Trainer(callbacks=[GuessColorCallback("color")], **QUIET).test(
        fresh, TinyPairs(), ckpt_path=tmp_path / "without.ckpt", verbose=False
    )
    assert_same(host_state(fresh), host_state(model))
    assert "color" in addons_of(fresh)


def test_missing_weights_of_the_host_stay_an_error(tmp_path: Path) -> None:
    model = fit([], tmp_path, enable_checkpointing=True)
    model.trainer.save_checkpoint(tmp_path / "full.ckpt")
    checkpoint = torch.load(tmp_path / "full.ckpt", weights_only=True)
    del checkpoint["state_dict"]["net.head.bias"]
    torch.save(checkpoint, tmp_path / "holed.ckpt")
    with pytest.raises(RuntimeError, match=r"net\.head\.bias"):
        TinyCaptioner.load_from_checkpoint(tmp_path / "holed.ckpt")


def test_checkpoints_hold_plain_types_only(tmp_path: Path) -> None:
    model = fit([GuessColorCallback("color")], tmp_path, enable_checkpointing=True)
    model.trainer.save_checkpoint(tmp_path / "plain.ckpt")
    checkpoint = torch.load(tmp_path / "plain.ckpt", weights_only=True)
    assert "red" in checkpoint["hyper_parameters"]["vocabulary"]


def test_deepcopy_is_independent(tmp_path: Path) -> None:
    model = fit([GuessColorCallback("color")], tmp_path)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        addons_of(twin)["color"].head.weight.zero_()
    assert addons_of(model)["color"].head.weight.abs().sum() > 0
    fit([GuessColorCallback("color")], tmp_path, twin, max_steps=1)


def test_removed_addons_leave_nothing(tmp_path: Path) -> None:
    model = fit([GuessColorCallback("color")], tmp_path)
    remove_addons(model)
    assert not addons_of(model)
    assert not [k for k in model.state_dict() if k.startswith("aux_addons")]
    fit([], tmp_path, model, max_steps=1)


def test_one_objective_may_replace_the_caption_loss(tmp_path: Path) -> None:
    model = fit([CrudeObjectiveCallback("crude")], tmp_path, max_steps=1)
    assert model.net.head.weight.grad is None
    with pytest.raises(ConfigError, match="at most one"):
        fit([CrudeObjectiveCallback("a"), CrudeObjectiveCallback("b")], tmp_path)


def test_order_and_host_rules_raise_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="list the add-on first"):
        fit([WeightAveraging(), GuessColorCallback("color")], tmp_path)

    class Manual(TinyCaptioner):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

    with pytest.raises(ConfigError, match="automatic optimization"):
        fit([GuessColorCallback("color")], tmp_path, Manual())


class WeightsOfEpochs(Callback):
    """Records the weights at the start of every epoch."""

    def __init__(self) -> None:
        self.weights: list[dict[str, Tensor]] = []

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.weights.append({name: p.detach().clone() for name, p in pl_module.named_parameters()})


@pytest.mark.parametrize("addons", [0, 1])
def test_stochastic_weight_averaging_averages_a_network_that_the_data_made(addons: int, tmp_path: Path) -> None:
    """Lightning copies the module before the vocabulary can be built from the data."""
    watch, averaging = WeightsOfEpochs(), StochasticWeightAveraging(1e-2, swa_epoch_start=1)
    model = fit([watch, averaging, *[GuessColorCallback("color")][:addons]], tmp_path, max_epochs=3)
    for name, parameter in model.named_parameters():
        seen = torch.stack([weights[name] for weights in watch.weights])
        torch.testing.assert_close(parameter, seen.mean(0), msg=name)
        assert not torch.equal(seen[0], seen[-1])


class Built(AddonCallback):
    """Returns the given object from ``build``."""

    def __init__(self, addon: Any) -> None:
        super().__init__("mine")
        self.addon = addon

    def build(self, host: LightningModule) -> Any:
        return self.addon


class Forgets(Addon):
    """Returns None or another invalid value from one of its methods."""

    def __init__(self, method: str, found: Any = None) -> None:
        super().__init__()
        setattr(self, method, lambda step: found)


@pytest.mark.parametrize(
    ("addon", "says"),
    [
        (None, r"Built\.build returned None; expected an Addon"),
        (nn.Linear(1, 1), r"Built\.build returned Linear\(.*; expected an Addon"),
        (Forgets("batch"), r"Forgets\.batch returned None; expected step\.batch, changed or unchanged"),
        (Forgets("features"), r"Forgets\.features returned None; expected step\.features, changed or unchanged"),
        (Forgets("losses"), r"Forgets\.losses returned None; expected a dict of scalar tensors"),
        (Forgets("losses", torch.ones(())), r"Forgets\.losses returned tensor\(1\.\); expected a dict of scalar"),
        (Forgets("losses", {"a": 1.0}), r"Forgets\.losses returned \{'a': 1\.0\}; expected a dict of scalar"),
        (Forgets("losses", {"a": torch.ones(2)}), r"Forgets\.losses returned .*; expected a dict of scalar tensors"),
    ],
)
def test_an_incomplete_addon_raises_an_error(addon: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        fit([Built(addon)], tmp_path, max_steps=1)


@pytest.mark.slow
def test_accumulating_four_batches_of_one_equals_one_batch_of_four(tmp_path: Path) -> None:
    def run(batch_size: int, accumulate: int) -> LightningModule:
        return fit(
            [NoiselessCallback("color")],
            tmp_path,
            TinyCaptioner(dropout=0.0),
            batch_size=batch_size,
            accumulate_grad_batches=accumulate,
        )

    one, four = run(4, 1), run(1, 4)
    for (name, a), b in zip(one.state_dict().items(), four.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-6, msg=name)


# ---- other LightningModules as hosts ----------------------------------------------------------------------


class Foreign(LightningModule):
    """A user's own LightningModule: a regression on inputs of two numbers."""

    def __init__(self, by_hand: bool = False, as_dict: bool = False) -> None:
        super().__init__()
        self.body = nn.Linear(2, 4)
        self.head = nn.Linear(4, 1)
        self.extra = _square(4) if by_hand else None
        self.as_dict = as_dict

    def training_step(self, batch: Tensor, batch_idx: int) -> Any:
        hidden = self.body(batch)
        loss = (self.head(hidden) - batch.sum(1, keepdim=True)).square().mean()
        if self.extra is not None:
            loss = loss + 0.25 * self.extra(hidden).square().mean()
        return {"loss": loss} if self.as_dict else loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def _square(width: int) -> nn.Linear:
    layer = nn.Linear(width, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.arange(2.0 * width).view(2, width) / 10)
        layer.bias.zero_()
    return layer


class SquareAddon(Addon):
    def __init__(self) -> None:
        super().__init__()
        self.layer = _square(4)

    def losses(self, step: TrainingStep) -> dict[str, Tensor]:
        return {"square": self.layer(step.features).square().mean()}


class SquareCallback(AddonCallback):
    def build(self, host: LightningModule) -> Addon:
        return SquareAddon()


class Recorder(Addon):
    """Records the shapes of the features and the random numbers drawn in each hook."""

    def __init__(self) -> None:
        super().__init__()
        self.saw: list[tuple[int, ...]] = []
        self.drew: list[Tensor] = []

    def batch(self, step: TrainingStep) -> Any:
        self.drew.append(torch.rand(2))
        return step.batch

    def features(self, step: TrainingStep) -> Any:
        self.drew.append(torch.rand(2))
        return step.features

    def losses(self, step: TrainingStep) -> dict[str, Tensor]:
        self.drew.append(torch.rand(2))
        features = step.features if isinstance(step.features, Tensor) else step.features.memory
        self.saw.append(tuple(features.shape))
        return {}


class RecorderCallback(AddonCallback):
    def build(self, host: LightningModule) -> Addon:
        return Recorder()


def recorder(host: LightningModule, name: str) -> Recorder:
    addon = addons_of(host)[name]
    assert isinstance(addon, Recorder)
    return addon


def test_two_addons_at_two_taps_see_their_own_features() -> None:
    model = fit_foreign(Foreign(), [RecorderCallback("a", at="body"), RecorderCallback("b", at="head")])
    assert set(recorder(model, "a").saw) == {(4, 4)}
    assert set(recorder(model, "b").saw) == {(4, 1)}


def test_two_addons_at_one_tap_draw_from_two_streams() -> None:
    model = fit_foreign(Foreign(), [RecorderCallback("a", at="body"), RecorderCallback("b", at="body")])
    one, two = recorder(model, "a").drew, recorder(model, "b").drew
    assert not any(torch.equal(x, y) for x, y in zip(one, two, strict=True))


@pytest.mark.parametrize("foreign", [False, True])
def test_the_draws_of_one_step_differ_and_are_the_same_in_another_run(foreign: bool, tmp_path: Path) -> None:
    def drawn() -> Tensor:
        if foreign:
            return torch.stack(recorder(fit_foreign(Foreign(), [RecorderCallback("a", at="body")]), "a").drew)
        return torch.stack(recorder(fit([RecorderCallback("a")], tmp_path), "a").drew)

    first = drawn()
    assert len(first) == 3 * 8, "three hooks in each of eight steps"
    assert len({tuple(row.tolist()) for row in first}) == len(first)
    assert torch.equal(first, drawn())


class Failing(Foreign):
    def training_step(self, batch: Tensor, batch_idx: int) -> Any:
        super().training_step(batch, batch_idx)
        raise RuntimeError("the host failed")


def fit_foreign(model: LightningModule, callbacks: list[Callback]) -> LightningModule:
    seed_everything(5, verbose=False)
    data = torch.utils.data.DataLoader(torch.randn(16, 2), batch_size=4)
    seed_everything(5, verbose=False)
    Trainer(callbacks=callbacks, max_epochs=2, enable_checkpointing=False, **QUIET).fit(model, data)
    return model


@pytest.mark.parametrize("as_dict", [False, True])
def test_addon_on_a_foreign_module_equals_the_loss_written_by_hand(as_dict: bool) -> None:
    torch.manual_seed(0)
    plain = Foreign(as_dict=as_dict)
    by_hand = Foreign(by_hand=True, as_dict=as_dict)
    by_hand.load_state_dict(plain.state_dict(), strict=False)
    fit_foreign(plain, [SquareCallback("square", weight=0.25, at="body")])
    fit_foreign(by_hand, [])
    assert torch.equal(plain.body.weight, by_hand.body.weight)
    assert torch.equal(addons_of(plain)["square"].layer.weight, by_hand.extra.weight)
    assert "training_step" not in plain.__dict__
    assert not plain.body._forward_hooks


def test_an_exception_leaves_nothing_patched() -> None:
    model = Failing()
    with pytest.raises(RuntimeError, match="the host failed"):
        fit_foreign(model, [SquareCallback("square", at="body")])
    assert "training_step" not in model.__dict__
    assert not model.body._forward_hooks


def test_a_wrong_path_is_answered_with_the_right_ones() -> None:
    with pytest.raises(ConfigError, match=r"no sub-module 'boddy'.*body"):
        fit_foreign(Foreign(), [SquareCallback("square", at="boddy")])
