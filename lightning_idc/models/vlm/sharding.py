"""FSDP2 over weights of several precisions: frozen layers low, what trains float32."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from lightning_idc.models.distributed import all_gather_object, is_rank_zero
from lightning_idc.models.vlm.net import VLMNet

NET_METHODS = ("encode", "logits", "log_probs")
"""Methods that gather the weights that belong to no layer."""


def shard_net(net: VLMNet, mesh: DeviceMesh, low: torch.dtype | None) -> None:
    """Shard a network layer by layer, once; what a layer gathers has one precision, as FSDP2 asks.

    Args:
        net: with its adapters.
        mesh: of the run, whose dimension ``data_parallel`` is sharded over.
        low: precision in which weights are gathered; that in which they are stored when None. Gradients are summed in
            float32.
    """
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

    if isinstance(net, FSDPModule):
        return
    policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32 if low else None)
    over = mesh["data_parallel"]

    def divide(parts: nn.Module | list[nn.Module]) -> None:
        fully_shard(parts, mesh=over, mp_policy=policy)  # type: ignore[arg-type]

    for unit in net.units():
        _separate(unit, divide)
        divide(unit)
    # the head stays with the root, whose methods gather it: log-probabilities read its weight without calling it
    _separate(net, divide, main=net.lm_head.weight.dtype)
    divide(net)
    for method in NET_METHODS:
        register_fsdp_forward_method(net, method)
    inner: nn.Module = net.model.model
    if isinstance(inner, FSDPModule):
        register_fsdp_forward_method(inner, "get_image_features")


def fill_from_first(net: nn.Module, whole: dict[str, Any]) -> None:
    """Give all processes their shares of the first one's weights; all must call this, after sharding.

    Args:
        net: sharded; its weights may be on ``meta`` on all processes but the first.
        whole: unsharded weights by name; read on the first process only.
    """
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    set_model_state_dict(net, whole, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))


def take_precision_of_first(net: nn.Module) -> None:
    """Let all weights have the precision that they have on the first process; all must call this, before sharding."""
    kinds = all_gather_object({name: p.dtype for name, p in net.named_parameters()} if is_rank_zero() else {})[0]
    for name, parameter in net.named_parameters():
        parameter.data = parameter.data.to(kinds[name])


Divide = Callable[[nn.Module | list[nn.Module]], None]


def _separate(root: nn.Module, divide: Divide, main: torch.dtype | None = None) -> None:
    """Give what is left of ``root`` in another precision than ``main``, or than most of it, groups of its own."""
    owners = list(_leftover(root))
    sizes: Counter[torch.dtype] = Counter()
    for _, parameters in owners:
        sizes.update({p.dtype: p.numel() for p in parameters})
    if len(sizes) < 2:
        return
    main = main or max(sizes, key=lambda kind: sizes[kind])
    # single weights that no layer owns, such as a newline of images: the part that owns them becomes a group
    for part, parameters in reversed(owners):
        if part is not root and next(part.children(), None) is not None and any(p.dtype != main for p in parameters):
            _divide_leaves(part, divide, set(sizes))
            _cast_loose(part, torch.float32)
            divide(part)
    _divide_leaves(root, divide, set(sizes) - {main})
    _cast_loose(root, main)


def _divide_leaves(root: nn.Module, divide: Divide, kinds: set[torch.dtype]) -> None:
    leaves = [(part, own) for part, own in _leftover(root) if part is not root and next(part.children(), None) is None]
    for kind in kinds:
        group = [part for part, own in leaves if all(p.dtype == kind for p in own)]
        if group:
            divide(group)


def _cast_loose(root: nn.Module, kind: torch.dtype) -> None:
    for _, parameters in _leftover(root):
        for parameter in parameters:
            parameter.data = parameter.data.to(kind)


def _leftover(root: nn.Module) -> Iterable[tuple[nn.Module, list[nn.Parameter]]]:
    """Modules below ``root`` that own weights which no sharded part below it owns."""
    from torch.distributed.fsdp import FSDPModule

    own = list(root.parameters(recurse=False))
    if own:
        yield root, own
    for child in root.children():
        if not isinstance(child, FSDPModule):
            yield from _leftover(child)
