"""AddonCallback: attaches an add-on to the module that is trained.

It registers the add-on in ``Callback.setup``, before the strategy wraps the model and before optimizers exist, so that
DDP, FSDP and checkpoints include its parameters.
"""

from __future__ import annotations

import zlib
from abc import abstractmethod
from typing import Any, ClassVar, cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher
from torch import nn

from lightning_idc.models.addon import AUX, Addon, addons_of, reconcile_addons
from lightning_idc.models.distributed import shard
from lightning_idc.models.foreign import attach, detach
from lightning_idc.models.module import PairModule
from lightning_idc.utils.errors import ConfigError


class AddonCallback(Callback):
    """Attaches an :class:`Addon` to the module that is trained; subclasses implement :meth:`build`.

    Args:
        name: key under ``aux_addons``; two add-ons of one class need different names.
        weight: factor of the losses of the add-on; 0 turns it off.
        at: path of the sub-module whose output is ``step.features``, for modules that are not a PairModule.
    """

    options_class: ClassVar[type[Any] | None] = None
    """Dataclass of the add-on's options, whose fields the constructor takes as keyword arguments."""

    def __init__(self, name: str, weight: float = 1.0, at: str | None = None) -> None:
        self.name = name
        self.weight = weight
        self.at = at

    @property
    def state_key(self) -> str:
        return f"{type(self).__qualname__}[{self.name}]"

    @abstractmethod
    def build(self, module: LightningModule) -> Addon:
        """Create the add-on; the layers of the module exist when this is called."""

    def reuse(self, module: LightningModule, addon: Addon) -> None:
        """Use parts of an add-on that an earlier run attached; overridden by callbacks that refer to such parts."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._check(trainer, pl_module, stage)
        calls_addons = isinstance(pl_module, PairModule)
        if isinstance(pl_module, PairModule):
            pl_module.build()
        elif self.at is not None:
            # the layer at `at` may be created only there; Lightning requires configure_model to be idempotent
            pl_module.configure_model()
        attached = addons_of(pl_module)
        if self.name in attached:
            self.reuse(pl_module, attached[self.name])
        else:
            self._register(pl_module)
            if not calls_addons and pl_module.device_mesh is not None:
                addon = addons_of(pl_module)[self.name]
                shard(addon, pl_module.device_mesh, addon.sharded_methods)
        attached = addons_of(pl_module)
        attached[self.name].weight = self.weight
        replacing = [name for name, addon in attached.items() if addon.replaces_objective]
        if len(replacing) > 1:
            raise ConfigError(f"add-ons {replacing} all replace the training loss; at most one may: remove the others")
        if not calls_addons and stage == "fit":
            attach(pl_module, self.name, self.at)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        detach(pl_module)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.teardown(trainer, pl_module, "fit")  # Lightning calls no teardown after an exception

    def _register(self, module: LightningModule) -> None:
        if AUX not in module._modules:
            module.add_module(AUX, nn.ModuleDict())
            cast(Any, module).register_load_state_dict_pre_hook(reconcile_addons)
        # building draws random numbers; without the fork it would shift the module's dropout and data order
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(zlib.crc32(f"{self.name}/{torch.initial_seed()}".encode()))
            addon: Any = self.build(module)
        if not isinstance(addon, Addon):
            raise ConfigError(f"{type(self).__name__}.build returned {addon!r:.80}; expected an Addon")
        addons = module.get_submodule(AUX)
        assert isinstance(addons, nn.ModuleDict)
        addons[self.name] = addon.to(module.device)

    def _check(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        callbacks: list[Callback] = cast(Any, trainer).callbacks
        names = [callback.name for callback in callbacks if isinstance(callback, AddonCallback)]
        if names.count(self.name) > 1:
            raise ConfigError(f"two add-ons are called {self.name!r}; give them different `name`s")
        if isinstance(module, PairModule) and self.at is not None:
            raise ConfigError(
                f"{type(self).__name__}: `at` is {self.at!r}, and a {type(module).__name__} passes its features to "
                "add-ons itself; leave `at` out"
            )
        check_order(trainer, self, "add-on")
        if stage != "fit":
            return
        if not module.automatic_optimization:
            raise ConfigError(
                f"{type(self).__name__} adds a loss, which needs automatic optimization; this module optimizes manually"
            )
        check_processes(trainer, self)


def check_order(trainer: Trainer, callback: Callback, part: str) -> None:
    """Check that a callback that adds weights is listed before callbacks that copy the model.

    Args:
        trainer: the trainer with all callbacks.
        callback: the callback to check.
        part: what it adds, "adapter" or "add-on", for the message.

    Raises:
        ConfigError: a WeightAveraging callback is listed before it.
    """
    callbacks: list[Callback] = cast(Any, trainer).callbacks
    earlier = callbacks[: callbacks.index(callback)] if callback in callbacks else []
    if any(isinstance(other, WeightAveraging) for other in earlier):
        raise ConfigError(
            f"{type(callback).__name__} is listed after a WeightAveraging callback, whose copy of the model would lack "
            f"the weights of the {part}; list the {part} first"
        )


def check_processes(trainer: Trainer, callback: Callback) -> None:
    """Check that the strategy does not spawn or fork processes: weights that a callback adds would be lost there.

    Raises:
        ConfigError: the strategy spawns or forks.
    """
    if isinstance(trainer.strategy.launcher, _MultiProcessingLauncher):
        raise ConfigError(
            f"{type(callback).__name__} cannot join a spawned or forked run: its parameters would be lost in the "
            "main process; use strategy=ddp"
        )
