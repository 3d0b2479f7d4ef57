"""State of torch's generators on one process, and random numbers that depend on the pair alone."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import torch
from torch import Tensor

from lightning_idc.images.types import PairBatch


def random_state(device: torch.device) -> dict[str, Tensor]:
    """State of the CPU's generator and, on CUDA, of the device's."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: Mapping[str, Tensor], device: torch.device) -> None:
    """Restore the generators from a result of :func:`random_state`."""
    torch.set_rng_state(state["cpu"].cpu())
    if "cuda" in state and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"].cpu(), device)


def pair_seeds(batch: PairBatch, key: str) -> list[int]:
    """Seed of the random numbers of each pair, from its id and the seed with which it was loaded (``meta["seed"]``).

    Args:
        batch: B pairs.
        key: key of the run and the epoch.
    """
    load_seeds = [meta.get("seed") for meta in batch.meta] if batch.meta else [None] * len(batch)
    return [zlib.crc32(f"{key}/{id}/{seed}".encode()) for id, seed in zip(batch.ids, load_seeds, strict=True)]


def uniform_of_pairs(batch: PairBatch, key: str, shape: tuple[int, ...]) -> Tensor:
    """Uniform random numbers ``(B, *shape)`` that depend neither on the other pairs nor on the number of processes.

    A larger first dimension of ``shape`` appends numbers.

    Args:
        batch: B pairs.
        key: key of the run and the epoch.
        shape: shape of the numbers of a pair.
    """
    seeds = pair_seeds(batch, key)
    return torch.stack([torch.rand(shape, generator=torch.Generator().manual_seed(seed)) for seed in seeds])
