"""Add-ons on LightningModules of other libraries: a wrapped ``training_step`` and one forward hook per add-on.

Each add-on reads the output of its own tap, in its own context, so that add-ons at two places do not see each other's
features and each draws from its own random stream.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lightning.pytorch import LightningModule
from torch import nn
from torch.utils.hooks import RemovableHandle

from lightning_idc.models.addon import AddonSteps, addons_of
from lightning_idc.utils.errors import ConfigError

_ATTACHED = "_foreign_addons"


@dataclass
class _Attached:
    """What this module put onto a host, and the step that is under way."""

    previous: Callable[..., Any] | None
    handles: dict[str, RemovableHandle] = field(default_factory=dict)
    steps: AddonSteps | None = None


def attach(host: LightningModule, name: str, at: str | None) -> None:
    """Let an attached add-on take part in the training steps of a host that does not call add-ons itself.

    Args:
        host: any LightningModule.
        name: of the add-on.
        at: path of the sub-module whose output is its features; None for an add-on that needs none.

    Raises:
        ConfigError: the host has no such sub-module.
    """
    own = _wrap(host)
    if at is None:
        return
    try:
        module = host.get_submodule(at)
    except AttributeError:
        paths = [path for path, _ in host.named_modules() if path][:30]
        raise ConfigError(f"{type(host).__name__} has no sub-module {at!r}; it has {', '.join(paths)}") from None

    def read(_module: nn.Module, _inputs: Any, output: Any) -> Any:
        if own.steps is None:
            return None
        addon, step = addons_of(host)[name], own.steps.contexts[name]
        step.features = output
        if addon.weight:
            with step.stream():
                step.features = addon.features(step)
        return step.features

    if name in own.handles:
        own.handles[name].remove()
    own.handles[name] = module.register_forward_hook(read)


def detach(host: LightningModule) -> None:
    """Take all hooks and the wrapper off a host."""
    own: _Attached | None = host.__dict__.pop(_ATTACHED, None)
    if own is None:
        return
    for handle in own.handles.values():
        handle.remove()
    if own.previous is None:
        host.__dict__.pop("training_step", None)
    else:
        host.__dict__["training_step"] = own.previous


def _wrap(host: LightningModule) -> _Attached:
    """Surround the ``training_step`` of a host with its add-ons' calls, once."""
    known: _Attached | None = host.__dict__.get(_ATTACHED)
    if known is not None:
        return known
    own = host.__dict__[_ATTACHED] = _Attached(host.__dict__.get("training_step"))
    original: Callable[..., Any] = host.training_step

    @functools.wraps(original)
    def training_step(batch: Any, batch_idx: int = 0, *args: Any, **kwargs: Any) -> Any:
        own.steps = steps = AddonSteps(host, batch, batch_idx)
        try:
            output = original(steps.change_batch(), batch_idx, *args, **kwargs)
        finally:
            own.steps = None
        if output is None:
            return None
        loss = output["loss"] if isinstance(output, dict) else output
        replaced = steps.objective()
        total = steps.total(loss if replaced is None else replaced)
        return {**output, "loss": total} if isinstance(output, dict) else total

    host.__dict__["training_step"] = training_step
    return own
