"""Groups of parameters: apart where weight decay spares some of them, and clipped apart where an add-on asks for it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import nn
from torch.optim import Optimizer

SPARED = ".undecayed"
"""Ending of the name of a group of parameters that weight decay spares."""


def by_decay(name: str, parameters: list[nn.Parameter], spared: Collection[int]) -> list[dict[str, Any]]:
    """A group of parameters, and beside it those of them that weight decay spares.

    Args:
        name: of the group.
        parameters: of the group.
        spared: ids of parameters of any group.
    """
    found: list[dict[str, Any]] = [
        {"name": name, "params": [p for p in parameters if id(p) not in spared]},
        {"name": name + SPARED, "params": [p for p in parameters if id(p) in spared], "weight_decay": 0.0},
    ]
    return [part for part in found if part["params"]]


def clip_apart(optimizer: Optimizer, bound: float, by_value: bool, names: Collection[str]) -> bool:
    """Bound the gradients of some groups by themselves and those of the rest together; False where there are no such.

    Args:
        optimizer: with named groups.
        bound: of the norm, or of each value.
        by_value: bound values.
        names: of the groups that are clipped apart.
    """
    groups = optimizer.param_groups
    apart = [group["params"] for group in groups if group.get("name", "").removesuffix(SPARED) in names]
    clip = nn.utils.clip_grad_value_ if by_value else nn.utils.clip_grad_norm_
    rest = [p for group in groups if group.get("name", "").removesuffix(SPARED) not in names for p in group["params"]]
    for parameters in [rest, *apart] if apart else []:
        clip(parameters, bound)
    return bool(apart)
