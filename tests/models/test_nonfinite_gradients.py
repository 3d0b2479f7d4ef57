"""A non-finite gradient does not damage checkpoints on the disk, and the run can be resumed from them."""

from __future__ import annotations

import copy
import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tiny import TinyCaptioner, TinyPairs
from helpers.training import QUIET
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn

from lightning_idc.callbacks.skip_steps import SkipNonFiniteSteps
from lightning_idc.checkpoints.checkpoint_io import AtomicCheckpointIO, newest_checkpoint
from lightning_idc.models.loss_check import gradient_norm
from lightning_idc.nn.vocabulary import Vocabulary
from lightning_idc.serve.export import write_graphs
from lightning_idc.utils.errors import CheckpointError, ConfigError

STEPS = 6
Fault = Callable[[Trainer, LightningModule], None]


class BadGradient(Callback):
    def __init__(self, step: int, value: float) -> None:
        self.step, self.value = step, value

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.global_step == self.step:
            next(p for p in pl_module.parameters() if p.grad is not None).grad.flatten()[0] = self.value  # type: ignore[union-attr]


def train(
    folder: Path, callbacks: list[Callback], every: int, model: TinyCaptioner | None = None, **options: Any
) -> None:
    seed_everything(1)
    saver = ModelCheckpoint(dirpath=folder, filename="{step}", every_n_train_steps=every, save_top_k=-1, save_last=True)
    settings = {**QUIET, "enable_checkpointing": True, "max_steps": STEPS, "max_epochs": -1, "limit_val_batches": 0}
    trainer = Trainer(
        **{**settings, **options, "callbacks": [*callbacks, saver], "plugins": [AtomicCheckpointIO()]},
        default_root_dir=folder,
    )
    path = newest_checkpoint(folder)
    trainer.fit(model or TinyCaptioner(), TinyPairs(), ckpt_path=None if path is None else str(path), weights_only=True)


def in_gradient(value: float) -> Fault:
    def fault(trainer: Trainer, module: LightningModule) -> None:
        next(p for p in module.parameters() if p.grad is not None).grad.flatten()[0] = value  # type: ignore[union-attr]

    return fault


def in_all_gradients(trainer: Trainer, module: LightningModule) -> None:
    for parameter in module.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(float("nan"))


def in_weight(value: float) -> Fault:
    def fault(trainer: Trainer, module: LightningModule) -> None:
        next(module.parameters()).data.flatten()[0] = value

    return fault


def in_buffer(value: float) -> Fault:
    def fault(trainer: Trainer, module: LightningModule) -> None:
        module.get_buffer("net.seen").fill_(value)

    return fault


def in_optimizer(name: str, value: float) -> Fault:
    def fault(trainer: Trainer, module: LightningModule) -> None:
        next(iter(trainer.optimizers[0].state.values()))[name].flatten()[0] = value

    return fault


def in_learning_rate(value: float) -> Fault:
    def fault(trainer: Trainer, module: LightningModule) -> None:
        trainer.optimizers[0].param_groups[0]["lr"] = value

    return fault


def in_average(trainer: Trainer, module: LightningModule) -> None:
    (averages,) = [callback for callback in trainer.callbacks if isinstance(callback, EMAWeightAveraging)]  # type: ignore[attr-defined]
    next(averages._average_model.parameters()).data.flatten()[0] = float("nan")  # type: ignore[union-attr]


def in_setting(name: str) -> Fault:
    def fault(trainer: Trainer, module: LightningModule) -> None:
        trainer.optimizers[0].param_groups[0][name] = NAN

    return fault


class Hook(Callback):
    """Damages the training once, after a backward pass or after a step."""

    def __init__(self, hook: str, fault: Fault, step: int) -> None:
        self.hook, self.fault, self.step = hook, fault, step

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.hook == "backward" and trainer.global_step == self.step:
            self.fault(trainer, pl_module)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *unused: Any) -> None:
        if self.hook == "step" and trainer.global_step == self.step:
            self.fault(trainer, pl_module)


class Counting(TinyCaptioner):
    """Has buffers that checkpoints contain, and a loss that can be damaged."""

    bad_loss: tuple[int, float] | None = None

    def make_net(self) -> nn.Module | None:
        net = super().make_net()
        if net is not None:
            net.register_buffer("seen", torch.zeros(()))
            net.register_buffer("spectrum", torch.zeros(2, dtype=torch.complex64))
            net.register_buffer("mask", torch.full((2,), float("-inf")))  # checkpoints may contain infinite values
        return net

    def training_loss(self, features: Any, batch: Any) -> torch.Tensor:
        loss = super().training_loss(features, batch)
        if self.bad_loss is not None and self.trainer.global_step == self.bad_loss[0]:
            return loss * self.bad_loss[1]
        return loss


INF, NAN = float("inf"), float("nan")
FAULTS: dict[str, tuple[str, Fault]] = {
    "gradient nan": ("backward", in_gradient(NAN)),
    "gradient inf": ("backward", in_gradient(INF)),
    "gradient -inf": ("backward", in_gradient(-INF)),
    "gradient whose square overflows": ("backward", in_gradient(1e38)),
    "all gradients nan": ("backward", in_all_gradients),
    "learning rate inf": ("backward", in_learning_rate(INF)),
    "learning rate nan": ("backward", in_learning_rate(NAN)),
    "weight nan": ("step", in_weight(NAN)),
    "weight inf": ("step", in_weight(INF)),
    "buffer nan": ("step", in_buffer(NAN)),
    "buffer inf": ("step", in_buffer(INF)),
    "first moment nan": ("step", in_optimizer("exp_avg", NAN)),
    "second moment inf": ("step", in_optimizer("exp_avg_sq", INF)),
    "learning rate nan for the next step": ("step", in_setting("lr")),
    "weight decay nan for the next step": ("step", in_setting("weight_decay")),
    "complex buffer nan": ("step", lambda trainer, module: module.get_buffer("net.spectrum").fill_(NAN)),
    "average nan": ("step", in_average),
    "loss nan": ("loss", in_weight(NAN)),
    "loss inf": ("loss", in_weight(INF)),
}


def assert_finite(path: Path) -> None:
    content = torch.load(path, weights_only=True)
    states = [value for state in content["optimizer_states"] for value in state["state"].values()]
    settings = {
        name: torch.tensor(value)
        for group in content["optimizer_states"]
        for name, value in group["param_groups"][0].items()
        if isinstance(value, float)
    }
    for values in (content["state_dict"], content.get("current_model_state", {}), *states, settings):
        for name, value in values.items():
            if isinstance(value, torch.Tensor) and name != "net.mask":
                assert torch.isfinite(value).all(), (path.name, name)


@pytest.mark.slow
@pytest.mark.parametrize("step", [2, STEPS], ids=["in the middle", "at the last step"])
@pytest.mark.parametrize("name", FAULTS)
def test_what_is_on_the_disk_is_finite_after_each_fault(name: str, step: int, tmp_path: Path) -> None:
    hook, fault = FAULTS[name]
    averages = [EMAWeightAveraging()] if name == "average nan" else []
    model = Counting()
    if hook == "loss":
        model.bad_loss = (step - 1, NAN if "nan" in name else INF)
    bad = Hook(hook, fault, step - (hook == "backward"))
    with pytest.raises((CheckpointError, ConfigError)) as raised:
        # the damage comes before the callback that saves, as from a user's callback
        train(tmp_path, [*averages, bad], 1, model)
    assert "\n" not in str(raised.value)
    assert [*tmp_path.glob("*.ckpt")]
    for path in tmp_path.glob("*.ckpt"):
        assert_finite(path)
    assert newest_checkpoint(tmp_path) is not None
    train(tmp_path, averages, 1, Counting())
    newest = newest_checkpoint(tmp_path)
    assert newest is not None and torch.load(newest, weights_only=True)["global_step"] == STEPS
    assert_finite(newest)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gradient nan", "gradient inf", "all gradients nan", "loss nan", "loss inf"])
def test_a_step_is_skipped_by_choice(name: str, tmp_path: Path) -> None:
    """Oracle: the weights and moments before the step; skipping the step has the same effect as restoring them."""
    states: dict[int, dict[str, Any]] = {}

    class Record(Callback):
        def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *unused: Any) -> None:
            optimizer = trainer.optimizers[0].state_dict()["state"]
            states[trainer.global_step] = copy.deepcopy({"weights": pl_module.state_dict(), "moments": optimizer})

    model, (hook, fault) = Counting(), FAULTS[name]
    if hook == "loss":
        model.bad_loss = (2, NAN if "nan" in name else INF)
    skip = SkipNonFiniteSteps()
    logger = CSVLogger(tmp_path)
    train(tmp_path, [Hook(hook, fault, 2), skip, Record()], 1, model, logger=logger, log_every_n_steps=1)
    torch.testing.assert_close(states[3], states[2], rtol=0, atol=0)
    assert skip.skipped == 1 and states[4]["weights"]["net.head.bias"].ne(states[3]["weights"]["net.head.bias"]).any()
    logged = list(csv.DictReader((Path(logger.log_dir) / "metrics.csv").open()))
    assert [row["train/skipped_steps"] for row in logged if row["train/skipped_steps"]][-1] == "1.0"
    for path in tmp_path.glob("*.ckpt"):
        assert_finite(path)


def test_skipping_ends_where_every_step_is_bad(tmp_path: Path) -> None:
    class EveryStep(Callback):
        def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
            in_all_gradients(trainer, pl_module)

    with pytest.raises(ConfigError, match="3 steps in a row"):
        train(tmp_path, [EveryStep(), SkipNonFiniteSteps(2)], 1)


def test_a_captioner_that_is_not_finite_is_not_saved_to_a_folder(tmp_path: Path) -> None:
    model = Counting(vocabulary=Vocabulary.build(["it moved"]).words)
    model.build()
    in_weight(NAN)(None, model)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="not finite"):
        model.save_pretrained(tmp_path / "out")
    with pytest.raises(CheckpointError, match="not finite"):
        write_graphs(model, tmp_path / "out", "torch")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, STEPS - 1], ids=["in the middle", "at the last step"])
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 1e38])
def test_checkpoints_stay_finite_and_the_run_goes_on_with_clipping(step: int, value: float, tmp_path: Path) -> None:
    """The norm spreads one bad value to all gradients; without clipping, see the test of each fault above."""
    try:
        train(tmp_path, [BadGradient(step, value)], 1, gradient_clip_val=1.0)
    except (CheckpointError, ConfigError) as error:
        assert "\n" not in str(error)
    else:
        assert value == 1e38, "only a finite gradient may pass"
    for path in tmp_path.glob("*.ckpt"):
        weights = torch.load(path, weights_only=True)["state_dict"].values()
        assert all(torch.isfinite(weight).all() for weight in weights if weight.is_floating_point()), path.name
    assert newest_checkpoint(tmp_path) is not None
    train(tmp_path, [], 1, gradient_clip_val=1.0)
    newest = newest_checkpoint(tmp_path)
    assert newest is not None and torch.load(newest, weights_only=True)["global_step"] == STEPS


def test_a_checkpoint_with_nan_is_passed_over(tmp_path: Path) -> None:
    train(tmp_path, [], 2)
    newest = newest_checkpoint(tmp_path)
    assert newest is not None
    content = torch.load(newest, weights_only=True)
    next(iter(content["state_dict"].values())).flatten()[0] = float("nan")
    content["global_step"] += 1
    torch.save(content, tmp_path / "later.ckpt")
    notes: list[str] = []
    assert newest_checkpoint(tmp_path, notes.append) == newest and "NaN" in notes[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_norm_of_gradients_is_that_of_all_values_in_every_precision(dtype: torch.dtype) -> None:
    """Oracle: the norm of one float64 vector of all gradients. Regression: 64-true failed at the first step."""
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.zeros(size, dtype=kind)) for size, kind in ((5, dtype), (7, torch.float32))]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    expected = torch.cat([parameter.grad.double() for parameter in parameters if parameter.grad is not None]).norm()
    norm = gradient_norm(torch.optim.SGD(parameters, lr=1.0))
    assert float(norm) == pytest.approx(float(expected), rel=1e-12 if dtype == torch.float64 else 1e-6)
