"""How a callback joins a captioner's training step.

Lightning callbacks have no say in the loss. An :class:`Addon` is a plain torch module that may change the
batch, change the features, replace the caption loss and add losses of its own; an :class:`AddonCallback`
registers it under ``host.aux_addons.<name>`` in ``Callback.setup``, which is before the strategy wraps the
model and before optimizers exist, so DDP, FSDP and checkpoints see its parameters.

:class:`~lightning_idc.core.captioner.PairCaptioner` calls its add-ons openly in ``training_step``. Any other
LightningModule gets the same calls from a wrapper around its ``training_step``, with its features read by a
forward hook at the module path ``at``.
"""

from __future__ import annotations

import functools
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from lightning_idc.core.types import PairError

AUX = "aux_addons"
ADDON_METHODS = ("batch", "features", "objective", "losses")


@dataclass(slots=True)
class TrainingStep:
    """One training step as its add-ons see it; they read it and fill in what comes later.

    Args:
        host: the module that trains.
        batch: what the data loader gave, after the add-ons before this one.
        index: number of the batch within the epoch.
        features: what the host made of the batch; None before it is known.
        loss: the loss so far; None before it is known.
    """

    host: LightningModule
    batch: Any
    index: int
    features: Any = None
    loss: Tensor | None = None


class Addon(nn.Module):
    """A part that only training needs. Override any of the four methods; the others do nothing.

    Random numbers drawn in any of them come from a stream of the add-on's own (:meth:`stream`), so that an
    add-on never shifts the host's dropout.

    Args:
        weight: factor of its losses. 0 equals absent: nothing but its losses is asked, and they count 0.
    """

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        self.weight = weight

    def batch(self, step: TrainingStep) -> Any:
        """Batch that the host shall encode."""
        return step.batch

    def features(self, step: TrainingStep) -> Any:
        """Features that the caption loss shall read."""
        return step.features

    def objective(self, step: TrainingStep) -> Tensor | None:
        """Loss that replaces the caption loss, or None to leave it."""
        return None

    def losses(self, step: TrainingStep) -> dict[str, Tensor]:
        """Scalar losses to add, by name."""
        return {}

    @property
    def replaces_objective(self) -> bool:
        """Whether this add-on brings an objective of its own."""
        return type(self).objective is not Addon.objective


@contextmanager
def stream(name: str, step: TrainingStep) -> Iterator[None]:
    """Run a block on random numbers seeded by add-on name, step and rank, leaving the global ones as they were."""
    device = step.host.device
    devices = [device] if device.type == "cuda" else []
    trainer = step.host.trainer
    key = f"{name}/{trainer.current_epoch}/{step.index}/{trainer.global_rank}/{torch.initial_seed()}"
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(zlib.crc32(key.encode()))
        yield


def shard(module: nn.Module, mesh: DeviceMesh, methods: Sequence[str]) -> None:
    """Shard a module over the data-parallel processes (FSDP2), once; ``methods`` gather its weights when called."""
    from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

    if isinstance(module, FSDPModule) or next(module.parameters(), None) is None:
        return
    fully_shard(module, mesh=mesh["data_parallel"])
    for method in methods:
        register_fsdp_forward_method(module, method)


@contextmanager
def gathered(module: nn.Module) -> Iterator[None]:
    """Keep the weights of a sharded module whole on every process, where processes call it unequally often."""
    from torch.distributed.fsdp import FSDPModule

    if not isinstance(module, FSDPModule):
        yield
        return
    units = [part for part in module.modules() if isinstance(part, FSDPModule)]
    # a unit that gives its weights back after each call would ask the other processes for them at the next
    module.set_reshard_after_forward(False)
    for unit in units:
        unit.unshard()
    try:
        yield
    finally:
        module.set_reshard_after_forward(True)
        for unit in units:
            unit.reshard()


def addons_of(host: LightningModule) -> dict[str, Addon]:
    """Add-ons of a module by name, in the order in which they were attached."""
    box = host._modules.get(AUX)
    return dict(box.items()) if isinstance(box, nn.ModuleDict) else {}  # type: ignore[arg-type]


def remove_addons(host: LightningModule) -> None:
    """Forget all add-ons with their parameters, for another fit of the same object without them."""
    for addon in addons_of(host).values():
        _untap(addon)
    host._modules.pop(AUX, None)


def before_encoding(step: TrainingStep) -> None:
    """Let every add-on change ``step.batch``."""
    for name, addon in addons_of(step.host).items():
        if addon.weight:
            with stream(name, step):
                step.batch = addon.batch(step)


def after_encoding(step: TrainingStep) -> None:
    """Let every add-on change ``step.features``."""
    for name, addon in addons_of(step.host).items():
        if addon.weight:
            with stream(name, step):
                step.features = addon.features(step)


def replaced_objective(step: TrainingStep) -> Tensor | None:
    """Objective of the one add-on that brings its own, or None."""
    for name, addon in addons_of(step.host).items():
        if addon.replaces_objective and addon.weight:
            with stream(name, step):
                return addon.objective(step)
    return None


def add_losses(step: TrainingStep) -> Tensor:
    """Sum of ``step.loss`` and all weighted losses of the add-ons, each logged as ``train/<addon>/<loss>``."""
    total = step.loss
    assert total is not None
    for name, addon in addons_of(step.host).items():
        with stream(name, step):
            losses = addon.losses(step)
        for key, value in losses.items():
            total = total + addon.weight * value
            step.host.log(f"train/{name}/{key}", value.detach())
        if not addon.weight:
            # parameters that only the skipped methods use must stay in the graph, or DDP refuses the step
            for parameter in addon.parameters():
                total = total + 0.0 * parameter.sum()
    return total


class AddonCallback(Callback):
    """Attaches an :class:`Addon` to whatever module is trained; subclasses write :meth:`build`.

    Args:
        name: key under ``aux_addons``; two add-ons of one class need two names.
        weight: factor of the add-on's losses; 0 equals absent.
        at: path of the sub-module whose output is ``step.features``, for hosts that are not a PairCaptioner.
    """

    def __init__(self, name: str, weight: float = 1.0, at: str | None = None) -> None:
        self.name = name
        self.weight = weight
        self.at = at

    @property
    def state_key(self) -> str:
        return f"{type(self).__qualname__}[{self.name}]"

    @abstractmethod
    def build(self, host: LightningModule) -> Addon:
        """Make the add-on; the host's layers exist when this is called."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        from lightning_idc.core.captioner import PairCaptioner

        self._check(trainer, pl_module, stage)
        cooperative = isinstance(pl_module, PairCaptioner)
        if cooperative:
            pl_module.build()  # type: ignore[operator]
        elif self.at is not None:
            # the tapped layers may be made there only; Lightning asks that it be idempotent
            pl_module.configure_model()  # type: ignore[operator]
        attached = addons_of(pl_module)
        if self.name not in attached:
            self._register(pl_module)
            if not cooperative and pl_module.device_mesh is not None:
                shard(addons_of(pl_module)[self.name], pl_module.device_mesh, ADDON_METHODS)
        attached = addons_of(pl_module)
        attached[self.name].weight = self.weight
        owners = [name for name, addon in attached.items() if addon.replaces_objective]
        if len(owners) > 1:
            raise PairError(f"add-ons {owners} all replace the caption loss; at most one may: remove the others")
        if not cooperative and stage == "fit":
            if self.at is not None:
                _tap(attached[self.name], pl_module, self.at)
            _wrap_training_step(pl_module)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        addon = addons_of(pl_module).get(self.name)
        if addon is not None:
            _untap(addon)
        _unwrap_training_step(pl_module)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.teardown(trainer, pl_module, "fit")  # Lightning calls no teardown after an exception

    def _register(self, host: LightningModule) -> None:
        if AUX not in host._modules:
            host.add_module(AUX, nn.ModuleDict())
            host.register_load_state_dict_pre_hook(reconcile_addons)
        # building draws random numbers; without the fork it would shift the host's dropout and data order
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(zlib.crc32(f"{self.name}/{torch.initial_seed()}".encode()))
            addon = self.build(host)
        host._modules[AUX][self.name] = addon.to(host.device)  # type: ignore[index,operator]

    def _check(self, trainer: Trainer, host: LightningModule, stage: str) -> None:
        callbacks = trainer.callbacks  # type: ignore[attr-defined]
        names = [callback.name for callback in callbacks if isinstance(callback, AddonCallback)]
        if names.count(self.name) > 1:
            raise PairError(f"two add-ons are called {self.name!r}; give each a `name` of its own")
        earlier = callbacks[: callbacks.index(self)] if self in callbacks else []
        if any(isinstance(callback, WeightAveraging) for callback in earlier):
            raise PairError(
                f"{type(self).__name__} stands after a WeightAveraging callback, whose copy of the model would lack "
                "the add-on's weights; list the add-on first"
            )
        if stage != "fit":
            return
        if not host.automatic_optimization:
            raise PairError(
                f"{type(self).__name__} adds a loss, which needs automatic optimization; this host has none"
            )
        if isinstance(trainer.strategy.launcher, _MultiProcessingLauncher):
            raise PairError(
                f"{type(self).__name__} cannot join a spawned or forked run: its parameters would be lost in the "
                "main process; use strategy=ddp"
            )


def reconcile_addons(host: nn.Module, state_dict: dict[str, Any], prefix: str, *unused: Any) -> None:
    """Make a state dict fit the add-ons that are attached: a ``load_state_dict`` pre-hook.

    Weights of an add-on that is not attached are dropped; one that the checkpoint has never seen keeps its
    fresh weights. Everything else stays strict.
    """
    assert isinstance(host, LightningModule)
    attached = addons_of(host)
    root = f"{prefix}{AUX}."
    seen = {key[len(root) :].split(".", 1)[0] for key in state_dict if key.startswith(root)}
    for key in [key for key in state_dict if key.startswith(root)]:
        if key[len(root) :].split(".", 1)[0] not in attached:
            del state_dict[key]
    for name in attached.keys() - seen:
        for key, value in attached[name].state_dict().items():
            state_dict[f"{root}{name}.{key}"] = value


def _tap(addon: Addon, host: LightningModule, at: str) -> None:
    try:
        module = host.get_submodule(at)
    except AttributeError:
        paths = [name for name, _ in host.named_modules() if name][:30]
        raise PairError(f"{type(host).__name__} has no sub-module {at!r}; it has {', '.join(paths)}") from None

    def read(_module: nn.Module, _inputs: Any, output: Any) -> Any:
        step: TrainingStep | None = host.__dict__.get("_addon_step")
        if step is None:
            return None
        step.features = output
        if addon.weight:
            with stream(at, step):
                step.features = addon.features(step)
        return step.features

    _untap(addon)
    object.__setattr__(addon, "_tap_handle", module.register_forward_hook(read))


def _untap(addon: Addon) -> None:
    handle = addon.__dict__.pop("_tap_handle", None)
    if handle is not None:
        handle.remove()


def _wrap_training_step(host: LightningModule) -> None:
    """Surround the ``training_step`` of a foreign host with its add-ons' calls, once per host."""
    original: Callable[..., Any] = host.training_step
    if "_unwrapped_training_step" in host.__dict__:
        return

    @functools.wraps(original)
    def training_step(batch: Any, batch_idx: int = 0, *args: Any, **kwargs: Any) -> Any:
        step = TrainingStep(host, batch, batch_idx)
        before_encoding(step)
        host.__dict__["_addon_step"] = step
        try:
            output = original(step.batch, batch_idx, *args, **kwargs)
        finally:
            del host.__dict__["_addon_step"]
        if output is None:
            return None
        loss = output["loss"] if isinstance(output, dict) else output
        replaced = replaced_objective(step)
        step.loss = loss if replaced is None else replaced
        total = add_losses(step)
        return {**output, "loss": total} if isinstance(output, dict) else total

    host.__dict__["_unwrapped_training_step"] = host.__dict__.get("training_step")
    host.__dict__["training_step"] = training_step


def _unwrap_training_step(host: LightningModule) -> None:
    if "_unwrapped_training_step" not in host.__dict__:
        return
    previous = host.__dict__.pop("_unwrapped_training_step")
    if previous is None:
        host.__dict__.pop("training_step", None)
    else:
        host.__dict__["training_step"] = previous
