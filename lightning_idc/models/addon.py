"""How a callback joins a training step.

Lightning callbacks have no say in the loss. An :class:`Addon` is a plain torch module that may change the
batch, change the features, replace the training loss and add losses of its own; an ``AddonCallback``
(``models/addon_callback.py``) registers it under ``host.aux_addons.<name>``.

An :class:`AddonHost`, such as every module of this library, calls its add-ons in ``training_step``. Any other
LightningModule gets the same calls from a wrapper around its ``training_step`` (``models/foreign.py``), with the
features of each add-on read by a forward hook at the module path ``at``.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from lightning_idc.utils.errors import ConfigError

AUX = "aux_addons"
ADDON_METHODS = ("batch", "features", "objective", "losses")


@dataclass(slots=True)
class TrainingStep:
    """One training step as one add-on sees it.

    Args:
        host: the module that trains.
        batch: what the data loader gave, after the add-ons before this one; after encoding, what was encoded.
        index: number of the batch within the epoch.
        features: what the host made of the batch, or, on a foreign host, the output at this add-on's own ``at``;
            None before it is known.
        loss: the loss so far; None before it is known.
        name: of the add-on.
    """

    host: LightningModule
    batch: Any
    index: int
    features: Any = None
    loss: Tensor | None = None
    name: str = ""
    _rng: tuple[Tensor, Tensor | None] | None = field(default=None, repr=False)

    @property
    def key(self) -> int:
        """Seed of the add-on's random numbers in this step, on this process."""
        trainer = self.host.trainer
        text = f"{self.name}/{trainer.current_epoch}/{self.index}/{trainer.global_rank}/{torch.initial_seed()}"
        return zlib.crc32(text.encode())

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Random numbers of the add-on's own, which run on from hook to hook; the global ones stay as they were."""
        device = self.host.device
        cuda = device.type == "cuda"
        with torch.random.fork_rng(devices=[device] if cuda else []):
            if self._rng is None:
                torch.manual_seed(self.key)
            else:
                torch.set_rng_state(self._rng[0])
                if self._rng[1] is not None:
                    torch.cuda.set_rng_state(self._rng[1], device)
            try:
                yield
            finally:
                self._rng = torch.get_rng_state(), torch.cuda.get_rng_state(device) if cuda else None


class Addon(nn.Module):
    """A part that only training needs. Override any of the four methods; the others do nothing.

    Random numbers drawn in any of them come from a stream of the add-on's own, which runs on from one method to the
    next, so that an add-on never shifts the host's dropout and never repeats a draw within a step.

    Args:
        weight: factor of its losses. 0 equals absent: nothing but its losses is asked, and they count 0.
    """

    sharded_methods: tuple[str, ...] = ADDON_METHODS
    """Methods that gather the weights of a sharded add-on when they are called."""
    clipped_apart: bool = False
    """Whether ``gradient_clip_val`` bounds this add-on's gradient by itself, as for one with a goal of its own."""

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        self.weight = weight

    def batch(self, step: TrainingStep) -> Any:
        """Batch that the host encodes."""
        return step.batch

    def features(self, step: TrainingStep) -> Any:
        """Features that the training loss reads."""
        return step.features

    def objective(self, step: TrainingStep) -> Tensor | None:
        """Loss that replaces the training loss, or None to leave it."""
        return None

    def losses(self, step: TrainingStep) -> dict[str, Tensor]:
        """Scalar losses to add, by name."""
        return {}

    @property
    def replaces_objective(self) -> bool:
        """Whether this add-on brings an objective of its own."""
        return type(self).objective is not Addon.objective


class AddonHost(LightningModule):
    """A module that calls its add-ons in ``training_step`` itself; :meth:`build` makes its network."""

    def build(self) -> None:
        """Make the network, once, from what is known; add-ons are built after it."""


def addons_of(host: LightningModule) -> dict[str, Addon]:
    """Add-ons of a module by name, in the order in which they were attached."""
    box = host._modules.get(AUX)
    if not isinstance(box, nn.ModuleDict):
        return {}
    return {name: addon for name, addon in box.items() if isinstance(addon, Addon)}


class AddonSteps:
    """The contexts of all add-ons of a host in one training step."""

    def __init__(self, host: LightningModule, batch: Any, index: int) -> None:
        self.host = host
        self.addons = addons_of(host)
        self.contexts = {name: TrainingStep(host, batch, index, name=name) for name in self.addons}
        self.batch = batch

    def active(self) -> Iterator[tuple[Addon, TrainingStep]]:
        """Add-ons with a weight, each with its context."""
        yield from ((addon, self.contexts[name]) for name, addon in self.addons.items() if addon.weight)

    def change_batch(self) -> Any:
        """Batch after every add-on changed it in turn."""
        for addon, step in self.active():
            step.batch = self.batch
            with step.stream():
                self.batch = _returned(addon, "batch", addon.batch(step))
        for step in self.contexts.values():
            step.batch = self.batch
        return self.batch

    def change_features(self, features: Any) -> Any:
        """Features after every add-on changed them in turn; all contexts then hold the result."""
        for addon, step in self.active():
            step.features = features
            with step.stream():
                found = addon.features(step)
            features = found if features is None else _returned(addon, "features", found)
        for step in self.contexts.values():
            step.features = features
        return features

    def objective(self) -> Tensor | None:
        """Objective of the one add-on that brings its own, or None."""
        for addon, step in self.active():
            if addon.replaces_objective:
                with step.stream():
                    return addon.objective(step)
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
                self.host.log(f"train/{name}/{key}", value.detach())
            if addon.weight:
                for value in losses.values():
                    total = total + addon.weight * value
            else:
                # 0 times an infinite loss would not be 0; the parameters stay in the graph, or DDP refuses the step
                for parameter in addon.parameters():
                    total = total + 0.0 * parameter.sum()
        return total


def _returned(addon: Addon, method: str, found: Any) -> Any:
    """What a method gave, refused where it gave nothing."""
    if found is None:
        raise ConfigError(f"{type(addon).__name__}.{method} returned None; return step.{method}, changed or as it is")
    return found


def _scalars(addon: Addon, found: Any) -> dict[str, Tensor]:
    """Losses, refused where they are not scalars by name."""
    if isinstance(found, dict) and all(isinstance(value, Tensor) and value.numel() == 1 for value in found.values()):
        return found
    raise ConfigError(
        f"{type(addon).__name__}.losses returned {found!r:.80}; expected a dict of scalar tensors by name, such as "
        '{"loss": loss.mean()}'
    )


def remove_addons(host: LightningModule) -> None:
    """Remove all add-ons with their parameters, for another fit of the same object without them."""
    host._modules.pop(AUX, None)


def reconcile_addons(host: nn.Module, state_dict: dict[str, Any], prefix: str, *unused: Any) -> None:
    """Make a state dict fit the add-ons that are attached: a ``load_state_dict`` pre-hook.

    Weights of an add-on that is not attached are dropped; one that the checkpoint has never seen keeps its
    fresh weights. Everything else stays strict.
    """
    assert isinstance(host, LightningModule)
    attached = addons_of(host)
    root = f"{prefix}{AUX}."
    stored = {key[len(root) :].split(".", 1)[0] for key in state_dict if key.startswith(root)}
    for key in [key for key in state_dict if key.startswith(root)]:
        if key[len(root) :].split(".", 1)[0] not in attached:
            del state_dict[key]
    for name in attached.keys() - stored:
        for key, value in attached[name].state_dict().items():
            state_dict[f"{root}{name}.{key}"] = value
