"""FSDP2 for weights of mixed precision: frozen layers in 16 bits, trainable weights in float32."""

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
"""Methods that gather the weights outside of sharded layers."""


def shard_net(net: VLMNet, mesh: DeviceMesh, gathered_dtype: torch.dtype | None) -> None:
    """Shard a network layer by layer, once; FSDP2 requires one dtype per sharded group.

    Args:
        net: network with its adapters installed.
        mesh: device mesh of the run; weights are sharded over its dimension ``data_parallel``.
        gathered_dtype: dtype of gathered weights; the stored dtype when None. Gradients are reduced in float32.
    """
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

    if isinstance(net, FSDPModule):
        return
    reduce_dtype = None if gathered_dtype is None else torch.float32
    policy = MixedPrecisionPolicy(param_dtype=gathered_dtype, reduce_dtype=reduce_dtype)
    data_parallel = mesh["data_parallel"]

    def shard(parts: nn.Module | list[nn.Module]) -> None:
        fully_shard(parts, mesh=data_parallel, mp_policy=policy)  # type: ignore[arg-type]

    for unit in net.units():
        _shard_other_dtypes(unit, shard)
        shard(unit)
    # the head stays with the root, whose methods gather it: log-probabilities read its weight without calling it
    _shard_other_dtypes(net, shard, main=net.lm_head.weight.dtype)
    shard(net)
    for method in NET_METHODS:
        register_fsdp_forward_method(net, method)
    inner: nn.Module = net.model.model
    if isinstance(inner, FSDPModule):
        register_fsdp_forward_method(inner, "get_image_features")


def broadcast_weights(net: nn.Module, full_weights: dict[str, Any]) -> None:
    """Broadcast the weights of rank 0 to the shards of all ranks; a collective call, after sharding.

    Args:
        net: sharded network; its weights may be on ``meta`` on all ranks but the first.
        full_weights: unsharded weights by name; only read on rank 0.
    """
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    set_model_state_dict(net, full_weights, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))


def broadcast_dtypes(net: nn.Module) -> None:
    """Give all weights the dtype that they have on rank 0; a collective call, before sharding."""
    dtypes = all_gather_object({name: p.dtype for name, p in net.named_parameters()} if is_rank_zero() else {})[0]
    for name, parameter in net.named_parameters():
        parameter.data = parameter.data.to(dtypes[name])


Shard = Callable[[nn.Module | list[nn.Module]], None]


def _shard_other_dtypes(root: nn.Module, shard: Shard, main: torch.dtype | None = None) -> None:
    """Shard the remaining parameters of ``root`` whose dtype differs from ``main`` as separate groups.

    ``main`` is the most frequent dtype when None.
    """
    owners = list(_unsharded_modules(root))
    sizes: Counter[torch.dtype] = Counter()
    for _, parameters in owners:
        sizes.update({p.dtype: p.numel() for p in parameters})
    if len(sizes) < 2:
        return
    main = main or max(sizes, key=lambda dtype: sizes[dtype])
    # single weights outside of layers, such as LLaVA's image_newline: their module becomes a group
    for part, parameters in reversed(owners):
        if part is not root and next(part.children(), None) is not None and any(p.dtype != main for p in parameters):
            _shard_leaves(part, shard, set(sizes))
            _cast_remaining(part, torch.float32)
            shard(part)
    _shard_leaves(root, shard, set(sizes) - {main})
    _cast_remaining(root, main)


def _shard_leaves(root: nn.Module, shard: Shard, dtypes: set[torch.dtype]) -> None:
    leaves = [
        (part, parameters)
        for part, parameters in _unsharded_modules(root)
        if part is not root and next(part.children(), None) is None
    ]
    for dtype in dtypes:
        group = [part for part, parameters in leaves if all(p.dtype == dtype for p in parameters)]
        if group:
            shard(group)


def _cast_remaining(root: nn.Module, dtype: torch.dtype) -> None:
    for _, parameters in _unsharded_modules(root):
        for parameter in parameters:
            parameter.data = parameter.data.to(dtype)


def _unsharded_modules(root: nn.Module) -> Iterable[tuple[nn.Module, list[nn.Parameter]]]:
    """Modules below ``root`` with parameters that do not belong to a sharded module yet."""
    from torch.distributed.fsdp import FSDPModule

    parameters = list(root.parameters(recurse=False))
    if parameters:
        yield root, parameters
    for child in root.children():
        if not isinstance(child, FSDPModule):
            yield from _unsharded_modules(child)
