"""The rules of add-ons and adapters hold for every public one of the library."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import pytest
import torch
from helpers.devices import on_gpu
from helpers.once import made_once
from helpers.plugins import (
    ADAPTERS,
    ADDONS,
    BATCHES,
    NOT_YET,
    PLUGINS,
    TWO,
    GridPairs,
    library_callbacks,
    public_plugins,
    train,
)
from helpers.processes import launch
from helpers.tiny import TinyCaptioner
from helpers.training import QUIET, assert_same, host_state
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, EMAWeightAveraging, ModelCheckpoint
from torch import Tensor

from lightning_idc.models.addon import addons_of
from lightning_idc.models.loading import load_module
from lightning_idc.utils.errors import ConfigError

GROUPED_BY = "name"
CHECKPOINTS = TemporaryDirectory()
every = pytest.mark.parametrize("name", PLUGINS)


class Watch(Callback):
    """Records trainable weights after each step, those that never get a gradient, and those that once miss it."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.steps: list[dict[str, Tensor]] = []
        self.idle = {name for name, p in pl_module.named_parameters() if p.requires_grad}
        self.absent: set[str] = set()

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: object) -> None:
        for name, parameter in pl_module.named_parameters():
            if parameter.requires_grad and parameter.grad is None:
                self.absent.add(name)
            elif parameter.requires_grad and parameter.grad is not None and parameter.grad.any():
                self.idle.discard(name)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *unused: Any) -> None:
        self.steps.append({n: p.detach().clone() for n, p in pl_module.named_parameters() if p.requires_grad})


def callbacks_of(name: str, averaged: bool) -> list[Callback]:
    return [*PLUGINS[name].callbacks(), *([EMAWeightAveraging(decay=0.5)] if averaged else [])]


@cache
def trained(name: str, averaged: bool = False) -> tuple[Any, Watch, Path]:
    """A model trained with a plug-in without interruption, and its checkpoint after six of eight steps in two epochs.

    It is trained once for all tests, which must not modify it.
    """
    watch, folder = Watch(), Path(mkdtemp(dir=CHECKPOINTS.name))
    saver = ModelCheckpoint(folder, filename="six", every_n_train_steps=6, save_top_k=-1)
    model = train(name, folder, [*callbacks_of(name, averaged), watch, saver], enable_checkpointing=True)
    return model, watch, folder / "six.ckpt"


def log_probs(model: TinyCaptioner) -> Tensor:
    was_training, batch = model.training, model.collate([GridPairs().source("val").load(i) for i in range(4)])
    with torch.no_grad():
        found = model.eval().score(model.encode(batch), batch.tokens, batch.caption_mask)
    model.train(was_training)
    return found


def close(found: dict[str, Tensor], model: LightningModule) -> None:
    """Assert that weights are equal up to rounding; buffers of single batches, such as running means, may differ."""
    for name, value in model.named_parameters():
        torch.testing.assert_close(
            found[name], value.data, rtol=1e-4, atol=2e-6, msg=lambda m, name=name: f"{name}: {m}"
        )


def test_every_public_plugin_is_in_the_table() -> None:
    entries = {name for plugin in PLUGINS.values() for name in plugin.covers}
    assert public_plugins() == entries | NOT_YET.keys() and not entries & NOT_YET.keys()
    assert library_callbacks() <= public_plugins(), "a callback that attaches something is exported"
    assert all(reason for plugin in PLUGINS.values() for reason in plugin.exempt.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", ADDONS)
def test_weight_zero_equals_absent(name: str, tmp_path: Path) -> None:
    plugin = PLUGINS[name]
    absent = train(name, tmp_path, plugin.beside())
    off = train(name, tmp_path, plugin.callbacks(weight=0.0))
    assert set(addons_of(off)) == set(plugin.names)
    assert_same(host_state(off), host_state(absent))
    on = trained(name)[0].state_dict()
    assert any(not torch.equal(value, on[key]) for key, value in host_state(absent).items())


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_is_absent_until_it_is_trained_and_while_it_is_off(name: str, tmp_path: Path) -> None:
    plugin = PLUGINS[name]
    absent = train(name, tmp_path, [], max_epochs=0)
    model = train(name, tmp_path, plugin.callbacks(), max_epochs=0)
    assert torch.equal(log_probs(model), log_probs(absent))
    model.net.requires_grad_(False)
    for adapter in model.adapters.installed().values():
        for parameter in adapter.trained_parameters(model.net):
            parameter.requires_grad_(True)
    train(name, tmp_path, plugin.callbacks(), model)
    assert not torch.equal(log_probs(model), log_probs(absent))
    with model.disable_adapters():
        assert torch.equal(log_probs(model), log_probs(absent))


@every
def test_every_parameter_trains(name: str) -> None:
    model, watch, _ = trained(name)
    assert watch.idle == set()
    assert watch.absent == set(), "distributed training refuses a step in which a parameter has no gradient"
    grouped = {id(p) for group in model.trainer.optimizers[0].param_groups for p in group["params"]}
    assert grouped == {id(p) for p in model.parameters() if p.requires_grad}


@every
@pytest.mark.parametrize("device", [on_gpu("cuda")])
def test_every_parameter_trains_on_a_gpu(name: str, device: str, tmp_path: Path) -> None:
    watch = Watch()
    options = {"accelerator": "gpu" if device == "cuda" else "cpu", "devices": 1}
    model = train(name, tmp_path, [*PLUGINS[name].callbacks(), watch], **options)
    assert watch.idle == watch.absent == set()
    assert {value.device.type for value in watch.steps[-1].values()} == {device}
    assert all(torch.isfinite(value).all() for value in model.state_dict().values())


@pytest.mark.slow
@every
@pytest.mark.parametrize("averaged", [False, True], ids=["plain", "with an average"])
def test_resume_equals_uninterrupted(name: str, averaged: bool, tmp_path: Path) -> None:
    model, _, checkpoint = trained(name, averaged)
    torch.manual_seed(12345)
    resumed = train(name, tmp_path, callbacks_of(name, averaged), ckpt_path=checkpoint)
    assert_same(dict(resumed.state_dict()), dict(model.state_dict()))


@pytest.mark.slow
@every
def test_an_average_of_weights_holds_all_of_them(name: str) -> None:
    model, watch, _ = trained(name, averaged=True)
    expected = watch.steps[0]
    for step in watch.steps[1:]:
        expected = {key: 0.5 * expected[key] + 0.5 * step[key] for key in expected}
    found = dict(model.named_parameters())
    for key, value in expected.items():
        torch.testing.assert_close(found[key].data, value, rtol=1e-5, atol=1e-7, msg=key)


@every
def test_what_comes_after_the_average_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"list the (add-on|adapter) first"):
        train(name, tmp_path, [EMAWeightAveraging(), *PLUGINS[name].callbacks()], max_steps=1)


@pytest.mark.slow
@every
def test_a_deep_copy_trains_on_by_itself_and_equally(name: str, tmp_path: Path) -> None:
    model, *_ = trained(name)
    before = copy.deepcopy(model.state_dict())
    one, two = copy.deepcopy(model), copy.deepcopy(model)
    assert_same(dict(one.state_dict()), before)
    for twin in (one, two):
        train(name, tmp_path, PLUGINS[name].callbacks(), twin, max_epochs=1)
    assert_same(dict(model.state_dict()), before)
    assert any(not torch.equal(value, one.state_dict()[key]) for key, value in before.items())
    assert_same(dict(one.state_dict()), dict(two.state_dict()))


@every
def test_save_with_and_load_without(name: str, tmp_path: Path) -> None:
    model, plugin = trained(name)[0], PLUGINS[name]
    model.trainer.save_checkpoint(tmp_path / "with.ckpt")
    alone = load_module(type(model), tmp_path / "with.ckpt")
    assert_same(dict(alone.state_dict()), host_state(model))
    assert torch.equal(log_probs(alone), log_probs(model))
    tested = plugin.host()
    trainer = Trainer(callbacks=plugin.callbacks(), **{**QUIET, "enable_checkpointing": False})
    trainer.test(tested, GridPairs(batch_size=4, seed=1), ckpt_path=tmp_path / "with.ckpt", verbose=False)
    assert torch.equal(log_probs(tested), log_probs(model))
    model.save_pretrained(tmp_path / "folder")
    again = type(model).from_pretrained(tmp_path / "folder")
    assert_same(dict(again.state_dict()), host_state(model))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PLUGINS if BATCHES not in PLUGINS[name].exempt])
def test_accumulating_four_batches_of_one_equals_one_of_four(name: str, tmp_path: Path) -> None:
    plugin = PLUGINS[name]
    four = train(name, tmp_path, plugin.callbacks(), batch_size=1, accumulate_grad_batches=4)
    close(dict(four.state_dict()), trained(name)[0])


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Results of training all plug-ins, one after the other, in two processes that are started once."""
    script = Path(__file__).with_name("plugin_processes.py")
    out = made_once(tmp_path_factory, "plugins", lambda out: launch(script, out / "found.pt", processes=2))
    found: dict[str, Any] = torch.load(out / "found.pt", weights_only=True)
    return found


@pytest.mark.dist
@every
def test_two_processes_equal_one(name: str, two_processes: dict[str, Any]) -> None:
    found = two_processes[name]
    assert found["apart"] == [], "both processes hold the same weights"
    if TWO not in PLUGINS[name].exempt:
        close(found["state"], trained(name)[0])
