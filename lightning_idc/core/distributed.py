"""What every process of a run holds, on every process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def together() -> bool:
    """Whether this process is one of several that torch.distributed has joined."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def place() -> tuple[int, int]:
    """Rank of this process and their number; 0 of 1 alone."""
    return (torch.distributed.get_rank(), torch.distributed.get_world_size()) if together() else (0, 1)


def of_all_processes(own: T) -> list[T]:
    """Objects of all processes in the order of their ranks; all of them must call this.

    Args:
        own: of this process; anything that can be pickled.
    """
    if not together():
        return [own]
    found: list[T] = [own] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(found, own)
    return found


def is_first() -> bool:
    """Whether this process is the one that writes files."""
    return place()[0] == 0


def whole(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights on the CPU, those that are sharded over processes put together; all processes must call this."""
    from torch.distributed.tensor import DTensor

    found = {}
    for name, value in state.items():
        full = value.full_tensor() if isinstance(value, DTensor) else value
        # tied weights come apart, which safetensors asks for
        found[name] = full.detach().cpu().contiguous().clone()
    return found


def leave_processes() -> None:
    """End what a strategy began: Lightning leaves threads of gloo behind, which may abort a finished process."""
    if together():
        torch.distributed.destroy_process_group()
