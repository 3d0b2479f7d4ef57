"""What every process of a run holds, on every process."""

from __future__ import annotations

from typing import TypeVar

import torch

T = TypeVar("T")


def of_all_processes(own: T) -> list[T]:
    """Objects of all processes in the order of their ranks; all of them must call this.

    Args:
        own: of this process; anything that can be pickled.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return [own]
    found: list[T] = [own] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(found, own)
    return found


def leave_processes() -> None:
    """End what a strategy began: Lightning leaves threads of gloo behind, which may abort a finished process."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
