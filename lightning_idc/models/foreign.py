"""Add-ons on LightningModules that are not PairModules: a wrapped ``training_step`` and one forward hook per add-on.

Each add-on has its own hook and its own context, so that add-ons at two sub-modules do not see each other's features,
and each has its own random stream.
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
    """State of the add-ons of a foreign module: its original step, the hooks, and the current step."""

    original_step: Callable[..., Any] | None
    handles: dict[str, RemovableHandle] = field(default_factory=dict)
    steps: AddonSteps | None = None


def submodule_at(module: LightningModule, at: str) -> nn.Module:
    """Sub-module of a module by its path.

    Raises:
        ConfigError: the module has no such sub-module.
    """
    try:
        return module.get_submodule(at)
    except AttributeError:
        paths = [path for path, _ in module.named_modules() if path][:30]
        raise ConfigError(f"{type(module).__name__} has no sub-module {at!r}; it has {', '.join(paths)}") from None


def attach(module: LightningModule, name: str, at: str | None) -> None:
    """Call an add-on in the training steps of a module that does not call add-ons itself.

    Args:
        module: any LightningModule.
        name: name of the add-on.
        at: path of the sub-module whose output is its features; None for an add-on that reads no features.

    Raises:
        ConfigError: the module has no such sub-module.
    """
    state = _wrap(module)
    if at is None:
        return
    submodule = submodule_at(module, at)

    def change_features(_module: nn.Module, _inputs: Any, output: Any) -> Any:
        if state.steps is None:
            return None
        addon, step = addons_of(module)[name], state.steps.contexts[name]
        step.features = output
        if addon.weight:
            with step.stream():
                step.features = addon.features(step)
        return step.features

    if name in state.handles:
        state.handles[name].remove()
    state.handles[name] = submodule.register_forward_hook(change_features)


def detach(module: LightningModule) -> None:
    """Remove all hooks and the wrapper from a module."""
    state: _Attached | None = module.__dict__.pop(_ATTACHED, None)
    if state is None:
        return
    for handle in state.handles.values():
        handle.remove()
    if state.original_step is None:
        module.__dict__.pop("training_step", None)
    else:
        module.__dict__["training_step"] = state.original_step


def _wrap(module: LightningModule) -> _Attached:
    """Wrap the ``training_step`` of a module with the calls of its add-ons, once."""
    existing: _Attached | None = module.__dict__.get(_ATTACHED)
    if existing is not None:
        return existing
    state = module.__dict__[_ATTACHED] = _Attached(module.__dict__.get("training_step"))
    original: Callable[..., Any] = module.training_step

    @functools.wraps(original)
    def training_step(batch: Any, batch_idx: int = 0, *args: Any, **kwargs: Any) -> Any:
        state.steps = steps = AddonSteps(module, batch, batch_idx)
        try:
            output = original(steps.change_batch(), batch_idx, *args, **kwargs)
        finally:
            state.steps = None
        if output is None:
            return None
        loss = output["loss"] if isinstance(output, dict) else output
        replaced = steps.objective()
        total = steps.total(loss if replaced is None else replaced)
        return {**output, "loss": total} if isinstance(output, dict) else total

    module.__dict__["training_step"] = training_step
    return state
