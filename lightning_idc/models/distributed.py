"""Helpers for distributed runs: ranks, gathered objects, full weights of sharded modules."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from lightning_idc.utils.errors import ConfigError

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule

K = TypeVar("K")
T = TypeVar("T")


def is_distributed() -> bool:
    """Whether torch.distributed is initialized."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def get_rank_world_size() -> tuple[int, int]:
    """Rank of this process and number of processes; 0 and 1 in a run of one process."""
    return (torch.distributed.get_rank(), torch.distributed.get_world_size()) if is_distributed() else (0, 1)


def is_rank_zero() -> bool:
    """Whether this process has rank 0, which writes files."""
    return get_rank_world_size()[0] == 0


def all_gather_object(local: T) -> list[T]:
    """Objects of all processes in the order of their ranks; all processes must call this.

    Args:
        local: object of this process; anything that can be pickled.
    """
    if not is_distributed():
        return [local]
    gathered_objects: list[T] = [local] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(gathered_objects, local)
    return gathered_objects


def all_gather_dict(local: Mapping[K, T]) -> dict[K, T]:
    """Entries of all processes in one mapping; all processes must call this. For equal keys the last rank wins.

    Args:
        local: entries of this process by name, such as the id of a pair, which a sampler may give to two processes.
    """
    return {key: entry for part in all_gather_object(local) for key, entry in part.items()}


def mean_over_processes(value: Tensor) -> Tensor:
    """Mean of a tensor over all processes; all processes must call this with equal shapes."""
    if not is_distributed():
        return value
    total = value.clone()
    torch.distributed.all_reduce(total)
    return total / torch.distributed.get_world_size()


def all_gather_with_gradients(module: LightningModule, local: Tensor) -> Tensor:
    """Rows of all processes, ``(W B, ...)`` of ``(B, ...)``; gradients flow to the process of each row."""
    gathered = module.all_gather(local, sync_grads=True)
    assert isinstance(gathered, Tensor)
    return gathered.flatten(0, 1)


def full_state_dict(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights on the CPU, sharded ones gathered; all processes must call this."""
    from torch.distributed.tensor import DTensor

    full_state = {}
    for name, value in state.items():
        tensor = value.full_tensor() if isinstance(value, DTensor) else value
        # clone separates tied weights, which safetensors requires
        full_state[name] = tensor.detach().cpu().contiguous().clone()
    return full_state


def destroy_process_group() -> None:
    """Destroy the process group: Lightning leaves threads of gloo running, which may abort a finished process."""
    if is_distributed():
        torch.distributed.destroy_process_group()


def is_sharded(module: nn.Module) -> bool:
    """Whether FSDP2 has sharded a module. FSDP is not imported for the check, since that takes half a second."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(module, fsdp.FSDPModule)


def shard(module: nn.Module, mesh: DeviceMesh, methods: Sequence[str]) -> None:
    """Shard a module over the data-parallel processes (FSDP2), once; its ``methods`` gather the weights when called."""
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    if "tensor_parallel" in (mesh.mesh_dim_names or ()) and mesh["tensor_parallel"].size() > 1:
        raise ConfigError(
            f"the strategy splits every layer over {mesh['tensor_parallel'].size()} processes (tensor_parallel_size), "
            "which no module here supports: each process would train its own unsharded weights. Use "
            "lightning_idc.models.strategies.ShardedStrategy, which shards over all processes"
        )
    if is_sharded(module) or next(module.parameters(), None) is None:
        return
    # FSDP2 cannot shard scalars, such as the scale of a frozen CLIP
    scalars = {p for p in module.parameters() if not p.ndim and not p.requires_grad}
    fully_shard(module, mesh=mesh["data_parallel"], ignored_params=scalars)
    for method in methods:
        register_fsdp_forward_method(module, method)


@contextmanager
def gathered(module: nn.Module) -> Iterator[None]:
    """Context in which every process holds the full weights of a sharded module, for loops of unequal length."""
    if not is_sharded(module):
        yield
        return
    from torch.distributed.fsdp import FSDPModule

    assert isinstance(module, FSDPModule)
    units = [part for part in module.modules() if isinstance(part, FSDPModule)]
    # a unit that reshards after each call would wait for the other processes at the next
    module.set_reshard_after_forward(False)
    for unit in units:
        unit.unshard()
    try:
        yield
    finally:
        module.set_reshard_after_forward(True)
        for unit in units:
            unit.reshard()
