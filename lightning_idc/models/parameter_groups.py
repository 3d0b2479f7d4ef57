"""Parameters of an optimizer: groups by name and weight decay, their precision, and clipping of their gradients."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from lightning_idc.utils.errors import ConfigError

NO_DECAY = ".no_decay"
"""Suffix of the name of a parameter group without weight decay."""
LOW_PRECISION = (torch.bfloat16, torch.float16)


def group_parameters(
    parameters: Iterable[tuple[str, nn.Parameter]], group_of: Callable[[str], str]
) -> dict[str, list[nn.Parameter]]:
    """Trainable parameters by name of group.

    Args:
        parameters: all parameters with their paths.
        group_of: name of the group of a path.
    """
    groups: dict[str, list[nn.Parameter]] = {}
    for path, parameter in parameters:
        if parameter.requires_grad:
            groups.setdefault(group_of(path), []).append(parameter)
    return groups


def check_groups(argument: str, names: Iterable[str], groups: Collection[str]) -> None:
    """Check that an argument names existing parameter groups.

    Raises:
        ConfigError: it names an unknown group.
    """
    if unknown := set(names) - set(groups):
        raise ConfigError(f"{argument} names {sorted(unknown)}; the parameter groups are {sorted(groups)}")


def split_by_decay(name: str, parameters: list[nn.Parameter], no_decay: Collection[int]) -> list[dict[str, Any]]:
    """Split a group of parameters into one with and one without weight decay.

    Args:
        name: name of the group.
        parameters: its parameters.
        no_decay: ids of the parameters, of any group, that do not decay.
    """
    groups: list[dict[str, Any]] = [
        {"name": name, "params": [p for p in parameters if id(p) not in no_decay]},
        {"name": name + NO_DECAY, "params": [p for p in parameters if id(p) in no_decay], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def clip_separately(optimizer: Optimizer, limit: float, by_value: bool, names: Collection[str]) -> bool:
    """Clip the gradients of some groups separately and all others together; False if no group is separate.

    Args:
        optimizer: optimizer with named groups.
        limit: maximum norm, or maximum absolute value.
        by_value: clip values instead of the norm.
        names: groups that are clipped separately.
    """
    separate: list[list[nn.Parameter]] = []
    rest: list[nn.Parameter] = []
    for group in optimizer.param_groups:
        if group.get("name", "").removesuffix(NO_DECAY) in names:
            separate.append(group["params"])
        else:
            rest += group["params"]
    clip = nn.utils.clip_grad_value_ if by_value else nn.utils.clip_grad_norm_
    for parameters in [rest, *separate] if separate else []:
        clip(parameters, limit)
    return bool(separate)


def check_trainable_precision(module: nn.Module, optimizer: Optimizer) -> None:
    """Check that no plain optimizer trains 16-bit weights, in which small updates round to nothing.

    Args:
        module: module in training.
        optimizer: its optimizer; those of other packages than torch and this one may keep float32 copies or round
            stochastically.

    Raises:
        ConfigError: at least one trainable weight has 16 bits.
    """
    low = [name for name, p in module.named_parameters() if p.requires_grad and p.dtype in LOW_PRECISION]
    if low and type(optimizer).__module__.startswith(("torch.optim.", "lightning_idc.")):
        raise ConfigError(
            f"{len(low)} trainable weights have 16 bits ({', '.join(low[:2])}), where small steps round away and "
            "nothing is learned; set trainer.precision to bf16-mixed, which keeps what trains in float32"
        )
