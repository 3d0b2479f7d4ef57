"""FSDP2 over weights of several precisions: frozen layers low, what trains float32."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from lightning_idc.methods.vlm.net import VLMNet

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
        fully_shard(parts, mesh=over, mp_policy=policy)

    for unit in net.units():
        _separate(unit, divide)
        divide(unit)
    _separate(net, divide)
    divide(net)
    for method in NET_METHODS:
        register_fsdp_forward_method(net, method)


def _separate(root: nn.Module, divide: object) -> None:
    """Give parts of another precision than most of what is left of ``root`` groups of their own."""
    owners = list(_leftover(root))
    sizes: dict[torch.dtype, int] = {}
    for _, parameters in owners:
        for parameter in parameters:
            sizes[parameter.dtype] = sizes.get(parameter.dtype, 0) + parameter.numel()
    if len(sizes) < 2:
        return
    main = max(sizes, key=lambda kind: sizes[kind])
    for kind in sizes.keys() - {main}:
        group = [
            part
            for part, parameters in owners
            if all(p.dtype == kind for p in parameters) and not list(part.children())
        ]
        if group:
            divide(group)  # type: ignore[operator]
    for _, parameters in _leftover(root):
        for parameter in parameters:
            if parameter.dtype != main:
                # single weights that no layer owns, such as a newline of images: few, so the finer precision for all
                parameter.data = parameter.data.to(main)


def _leftover(root: nn.Module) -> Iterable[tuple[nn.Module, list[nn.Parameter]]]:
    """Modules below ``root`` that own weights which no sharded part below it owns."""
    from torch.distributed.fsdp import FSDPModule

    own = list(root.parameters(recurse=False))
    if own:
        yield root, own
    for child in root.children():
        if not isinstance(child, FSDPModule):
            yield from _leftover(child)
