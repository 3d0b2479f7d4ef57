"""One training step of a small captioner with parts, and its observable outcome."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import RunningStage, TrainerFn
from torch import Tensor

from helpers.captioners import CAPTIONERS, SIDE
from helpers.training import QUIET
from helpers.vlm_tiny import ColorPairs, ColorSource
from lightning_idc.data.datamodule import stack_samples
from lightning_idc.data.source import PairSource
from lightning_idc.images.types import PairSample
from lightning_idc.metrics.no_change import NO_CHANGE
from lightning_idc.models.adapter_callback import AdapterCallback
from lightning_idc.models.addon import remove_addons
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.foreign import detach

BATCH = 3


class MixedSource(ColorSource):
    """Pairs of which every third is unchanged; each has a wrong caption in ``meta["rejected"]``."""

    def captions(self, index: int) -> list[str]:
        return ["nothing changed"] if index % 3 == 2 else super().captions(index)

    def change_type(self, index: int) -> str:
        return NO_CHANGE if index % 3 == 2 else super().change_type(index)

    def load(self, index: int) -> PairSample:
        sample = super().load(index)
        if index % 3 == 2:
            sample.after, sample.change_type = sample.before.clone(), NO_CHANGE
        sample.captions = self.captions(index)
        sample.meta["rejected"] = "nothing changed" if index % 3 == 1 else "the left half vanished"
        return sample


class MixedPairs(ColorPairs):
    """Two batches for training and validation."""

    def source(self, split: str) -> PairSource:
        return MixedSource(2 * BATCH, 0)


@cache
def trainer() -> Any:
    """A trainer in the state of ``fit``; each step sets its callbacks and module."""
    trainer: Any = Trainer(devices=1, enable_checkpointing=False, **QUIET)
    trainer.state.fn, trainer.state.stage = TrainerFn.FITTING, RunningStage.TRAINING
    trainer.datamodule = MixedPairs(batch_size=BATCH, seed=1, image_size=SIDE)
    trainer.datamodule.trainer = trainer
    return trainer


@cache
def built(captioner: str) -> tuple[Any, list[Any]]:
    """A captioner limited to short captions, or another module, and two batches for it."""
    torch.manual_seed(0)
    model: Any = CAPTIONERS[captioner]()
    model._trainer, trainer().strategy._lightning_module = trainer(), model
    source = trainer().datamodule.pairs_of("train")
    pairs = [[source.load(BATCH * number + i) for i in range(BATCH)] for number in range(2)]
    if not isinstance(model, PairCaptioner):
        return model, [stack_samples(samples) for samples in pairs]
    model.build()
    batches = [model.collate(samples) for samples in pairs]
    model.store_hparams(max_length=min(6, model.hparams["max_length"]))
    model.log = lambda *unused, **options: None
    # a vision-language model compares scoring methods in its first step; copies inherit the result
    model.training_step(batches[0], 0)
    model._trainer = None
    return model, batches


@contextmanager
def borrowed(original: Any, is_adapted: bool) -> Iterator[Any]:
    """Yield the captioner and restore it afterwards; yield a copy for adapters, which cannot be removed."""
    if is_adapted:
        yield copy.deepcopy(original)
        return
    tensors = [*original.parameters(), *original.buffers()]
    saved = [tensor.detach().clone() for tensor in tensors]
    try:
        yield original
    finally:
        remove_addons(original)
        detach(original)
        with torch.no_grad():
            for tensor, value in zip(tensors, saved, strict=True):
                tensor.copy_(value)


def outcome(
    captioner: str, parts: list[Callback], steps: int = 1, unlike: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Outcome of some training steps with callbacks: logged values, gradients, modules and warnings.

    The hooks are called in the order of Lightning's loop.

    Args:
        captioner: name in :data:`CAPTIONERS`.
        parts: callbacks.
        steps: number of training steps, up to 2.
        unlike: another outcome; if losses or logged values already differ from it, gradients are not computed.
    """
    original, batches = built(captioner)
    with borrowed(original, any(isinstance(part, AdapterCallback) for part in parts)) as model:
        return _outcome(model, batches, parts, steps, unlike)


def _outcome(
    model: Any, batches: list[Any], parts: list[Callback], steps: int, unlike: Mapping[str, Any] | None
) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    trainer().callbacks = parts
    model._trainer, trainer().strategy._lightning_module = trainer(), model
    progress = trainer().fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total
    progress.completed = 0
    model.log = lambda name, value, **options: seen.__setitem__(f"log {name}", torch.as_tensor(value).detach())
    torch.manual_seed(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for part in parts:
            part.setup(trainer(), model, "fit")
        model.train()
        for hook in ("on_fit_start", "on_train_start"):
            for part in parts:
                getattr(part, hook)(trainer(), model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step in range(steps):
            optimizer.zero_grad()
            loss = model.training_step(batches[step], step)
            seen[f"loss {step}"] = loss.detach()
            if unlike is not None and any(differ({key: value}, {key: unlike.get(key)}) for key, value in seen.items()):
                return seen
            loss.backward()
            for part in parts:
                part.on_before_optimizer_step(trainer(), model, optimizer)
            if step + 1 < steps:
                optimizer.step()
                progress.completed += 1
            for part in parts:
                part.on_train_batch_end(trainer(), model, loss, batches[step], step)
        for part in parts:
            part.on_validation_batch_end(trainer(), model, None, batches[0], 0)
    for name, parameter in model.named_parameters():
        seen[f"gradient {name}"], parameter.grad = parameter.grad, None
    seen |= {f"trained {name}": parameter.requires_grad for name, parameter in model.named_parameters()}
    seen |= {f"mode {name}": module.training for name, module in model.named_modules()}
    if isinstance(model, PairCaptioner):
        seen |= {f"adapter {name}": True for name in model.adapters.installed()}
    return seen | {f"warning {warning.message}": True for warning in caught if "likely" in str(warning.message)}


def differ(one: Mapping[str, Any], two: Mapping[str, Any]) -> bool:
    """Whether two outcomes differ by more than rounding."""
    if one.keys() != two.keys():
        return True
    return any(
        not torch.allclose(value, two[key], rtol=1e-3, atol=1e-7, equal_nan=True)
        if isinstance(value, Tensor) and isinstance(two[key], Tensor) and value.shape == two[key].shape
        else isinstance(value, Tensor) or isinstance(two[key], Tensor) or value != two[key]
        for key, value in one.items()
    )
