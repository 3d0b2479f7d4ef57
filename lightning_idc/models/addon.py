"""Addon: how a callback takes part in a training step.

A Lightning callback cannot change the loss. An :class:`Addon` is a torch module that may change the batch, change the
features, replace the training loss and add losses; an ``AddonCallback`` (``models/addon_callback.py``) registers it as
``module.aux_addons.<name>``. Each training step calls, in this order:

1. :meth:`Addon.batch` of every add-on: the batch that the module encodes;
2. :meth:`Addon.features` of every add-on: the features that the loss reads;
3. :meth:`Addon.objective` of at most one add-on: a loss in place of the training loss, times ``weight``;
4. :meth:`Addon.losses` of every add-on: losses that are added, times ``weight``.

A :class:`~lightning_idc.models.module.PairModule` makes these calls in ``training_step``. For any other LightningModule
a wrapper around its ``training_step`` makes them (``models/foreign.py``), and a forward hook at the module path ``at``
reads the features.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from lightning_idc.utils.errors import ConfigError

AUX = "aux_addons"
ADDON_METHODS = ("batch", "features", "objective", "losses")


M = TypeVar("M", bound=LightningModule)


@dataclass(slots=True)
class TrainingStep(Generic[M]):
    """State of one training step for one add-on; ``M`` is the class of module that the add-on supports.

    Args:
        module: the module in training.
        batch: batch of the data loader with the changes of earlier add-ons; after encoding, the batch that was encoded.
        index: number of the batch within the epoch.
        features: output of ``module.encode``, or, for another LightningModule, the output of the sub-module ``at``;
            None before it is computed.
        loss: training loss; None before it is computed.
        name: name of the add-on.
    """

    module: M
    batch: Any
    index: int
    features: Any = None
    loss: Tensor | None = None
    name: str = ""
    _rng: tuple[Tensor, Tensor | None] | None = field(default=None, repr=False)

    @property
    def seed(self) -> int:
        """Seed of the add-on's random numbers in this step, on this process."""
        trainer = self.module.trainer
        text = f"{self.name}/{trainer.current_epoch}/{self.index}/{trainer.global_rank}/{torch.initial_seed()}"
        return zlib.crc32(text.encode())

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Context manager with the random stream of the add-on, continued from call to call."""
        device = self.module.device
        cuda = device.type == "cuda"
        with torch.random.fork_rng(devices=[device] if cuda else []):
            if self._rng is None:
                torch.manual_seed(self.seed)
            else:
                torch.set_rng_state(self._rng[0])
                if self._rng[1] is not None:
                    torch.cuda.set_rng_state(self._rng[1], device)
            try:
                yield
            finally:
                self._rng = torch.get_rng_state(), torch.cuda.get_rng_state(device) if cuda else None


class Addon(nn.Module):
    """A part of a module that only training needs. Override any of the four methods; the defaults do nothing.

    Each add-on has its own random stream, which continues from one method to the next: an add-on never changes the
    dropout of the module and never repeats random numbers within a step.

    Args:
        weight: factor of its losses. With 0 only :meth:`losses` is called, for logging, and adds 0 to the loss.
    """

    sharded_methods: tuple[str, ...] = ADDON_METHODS
    """Methods that gather the weights of a sharded add-on when they are called."""
    clip_separately: bool = False
    """Whether ``gradient_clip_val`` limits the gradient of this add-on separately, as with a second optimizer."""

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        self.weight = weight

    def batch(self, step: TrainingStep[Any]) -> Any:
        """Batch that the module encodes."""
        return step.batch

    def features(self, step: TrainingStep[Any]) -> Any:
        """Features that the training loss reads."""
        return step.features

    def objective(self, step: TrainingStep[Any]) -> Tensor | None:
        """Loss that replaces the training loss, or None to leave it."""
        return None

    def losses(self, step: TrainingStep[Any]) -> dict[str, Tensor]:
        """Scalar losses to add, by name."""
        return {}

    @property
    def replaces_objective(self) -> bool:
        """Whether this add-on overrides :meth:`objective`."""
        return type(self).objective is not Addon.objective


def addons_of(module: LightningModule) -> dict[str, Addon]:
    """Add-ons of a module by name, in the order in which they were attached."""
    addons = module._modules.get(AUX)
    if not isinstance(addons, nn.ModuleDict):
        return {}
    return {name: addon for name, addon in addons.items() if isinstance(addon, Addon)}


class AddonSteps:
    """The contexts of all add-ons of a module in one training step."""

    def __init__(self, module: LightningModule, batch: Any, index: int) -> None:
        self.module = module
        self.addons = addons_of(module)
        self.contexts = {name: TrainingStep(module, batch, index, name=name) for name in self.addons}
        self.batch = batch

    def active(self) -> Iterator[tuple[Addon, TrainingStep[Any]]]:
        """Add-ons whose weight is not 0, each with its context."""
        yield from ((addon, self.contexts[name]) for name, addon in self.addons.items() if addon.weight)

    def change_batch(self) -> Any:
        """Batch after every add-on changed it in turn."""
        for addon, step in self.active():
            step.batch = self.batch
            with step.stream():
                self.batch = _not_none(addon, "batch", addon.batch(step))
        for step in self.contexts.values():
            step.batch = self.batch
        return self.batch

    def change_features(self, features: Any) -> Any:
        """Features after every add-on changed them in turn; all contexts then hold the result."""
        for addon, step in self.active():
            step.features = features
            with step.stream():
                changed = addon.features(step)
            features = changed if features is None else _not_none(addon, "features", changed)
        for step in self.contexts.values():
            step.features = features
        return features

    def objective(self) -> Tensor | None:
        """Objective of the add-on that overrides it, times its weight, or None."""
        for addon, step in self.active():
            if addon.replaces_objective:
                with step.stream():
                    loss = addon.objective(step)
                return None if loss is None else addon.weight * loss
        return None

    def total(self, loss: Tensor) -> Tensor:
        """Sum of a loss and all weighted losses of the add-ons, each logged as ``train/<addon>/<loss>``.

        NAMC Eq. 2
        """
        total = loss
        for name, addon in self.addons.items():
            step = self.contexts[name]
            step.loss = loss
            with step.stream():
                losses = _scalars(addon, addon.losses(step))
            for key, value in losses.items():
                self.module.log(f"train/{name}/{key}", value.detach())
            if addon.weight:
                for value in losses.values():
                    total = total + addon.weight * value
            else:
                # 0 times an infinite loss would not be 0; the parameters stay in the graph, or DDP refuses the step
                for parameter in addon.parameters():
                    total = total + 0.0 * parameter.sum()
        return total


def _not_none(addon: Addon, method: str, result: Any) -> Any:
    """The result of a method of an add-on; raises if it is None."""
    if result is None:
        raise ConfigError(
            f"{type(addon).__name__}.{method} returned None; expected step.{method}, changed or unchanged"
        )
    return result


def _scalars(addon: Addon, losses: Any) -> dict[str, Tensor]:
    """Losses by name; raises if they are anything but scalars."""
    if isinstance(losses, dict) and all(isinstance(value, Tensor) and value.numel() == 1 for value in losses.values()):
        return losses
    raise ConfigError(
        f"{type(addon).__name__}.losses returned {losses!r:.80}; expected a dict of scalar tensors by name, such as "
        '{"loss": loss.mean()}'
    )


def remove_addons(module: LightningModule) -> None:
    """Remove all add-ons with their parameters, for another fit of the same object without them."""
    module._modules.pop(AUX, None)


def reconcile_addons(module: nn.Module, state_dict: dict[str, Any], prefix: str, *unused: Any) -> None:
    """Make a state dict fit the add-ons that are attached: a ``load_state_dict`` pre-hook.

    Weights of an add-on that is not attached are dropped; an add-on without weights in the checkpoint keeps its initial
    ones. All other keys are still checked strictly.
    """
    assert isinstance(module, LightningModule)
    attached = addons_of(module)
    root = f"{prefix}{AUX}."
    stored = {key[len(root) :].split(".", 1)[0] for key in state_dict if key.startswith(root)}
    for key in [key for key in state_dict if key.startswith(root)]:
        if key[len(root) :].split(".", 1)[0] not in attached:
            del state_dict[key]
    for name in attached.keys() - stored:
        for key, value in attached[name].state_dict().items():
            state_dict[f"{root}{name}.{key}"] = value
