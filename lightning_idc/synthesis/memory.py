"""Detect out-of-memory errors, release memory and retry with smaller batches."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

T = TypeVar("T")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error is an out-of-memory error of the GPU or the CPU."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


def release_memory(error: BaseException) -> None:
    """Release the memory held by a failed batch.

    Args:
        error: error whose traceback keeps the tensors of its frames alive.
    """
    traceback.clear_frames(error.__traceback__)
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def map_with_halving(work: Callable[[list[int]], Sequence[T]], part: list[int]) -> list[T]:
    """Process a batch; if memory runs out, process its halves.

    Args:
        work: function from the numbers of inputs to their outputs, in order.
        part: numbers of the inputs.
    """
    try:
        return list(work(part))
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if len(part) < 2 or not is_out_of_memory(error):
            raise
        release_memory(error)
    half = len(part) // 2
    return [*map_with_halving(work, part[:half]), *map_with_halving(work, part[half:])]
