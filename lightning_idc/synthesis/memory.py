"""Running out of memory: how it shows, and what is let go before a smaller batch is tried."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

T = TypeVar("T")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on a GPU or on the processor."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


def release_memory(error: BaseException) -> None:
    """Let go of what a failed batch holds.

    Args:
        error: its traceback keeps the tensors of every frame alive.
    """
    traceback.clear_frames(error.__traceback__)
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def halving(work: Callable[[list[int]], Sequence[T]], part: list[int]) -> list[T]:
    """Answers to a batch; where memory runs out it is done in halves.

    Args:
        work: answers of the inputs with these numbers, in their order.
        part: the numbers.
    """
    try:
        return list(work(part))
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if len(part) < 2 or not is_out_of_memory(error):
            raise
        release_memory(error)
    half = len(part) // 2
    return [*halving(work, part[:half]), *halving(work, part[half:])]
