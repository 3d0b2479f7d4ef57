"""Rollouts: captions that a policy has drawn of a batch, and how good they are."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from lightning_idc.images.types import PairBatch
from lightning_idc.models.addon import TrainingStep
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.captions import pad_captions


@dataclass(slots=True)
class Rollout:
    """K captions of each of B pairs, drawn from the policy.

    Args:
        tokens: ``(B, K, T)``, the begin token first.
        mask: bool ``(B, K, T)``, True where a token was drawn.
        rewards: ``(B, K)``.
        advantages: ``(B, K)``.
        old: log-probabilities at the time of the drawing, ``(B, K, T)``; None in the step that drew, unless a server
            gave them, which are then not a number where it gave none.
        batch: that it is of, if more than one step trains on it.
        uses: steps that have trained on it.
    """

    tokens: Tensor
    mask: Tensor
    rewards: Tensor
    advantages: Tensor
    old: Tensor | None = None
    batch: PairBatch | None = None
    uses: int = 0

    def plain(self) -> dict[str, Any]:
        """As plain types and tensors on the processor, for a checkpoint."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.batch is not None:
            batch = self.batch.to("cpu")
            found["batch"] = {field.name: getattr(batch, field.name) for field in fields(batch)}
        return {name: value.cpu() if isinstance(value, Tensor) else value for name, value in found.items()}

    @classmethod
    def of_plain(cls, kept: dict[str, Any]) -> Rollout:
        """What :meth:`plain` gave."""
        return cls(**{**kept, "batch": None if kept["batch"] is None else PairBatch(**kept["batch"])})

    def to(self, device: torch.device) -> Rollout:
        """Copy with every tensor on a device."""
        moved: dict[str, Any] = {
            field.name: value.to(device)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor | PairBatch)
        }
        return replace(self, **moved)


def uniforms_of(batch: PairBatch, samples: int, length: int, key: str) -> Tensor:
    """Numbers that decide what is drawn for each pair, ``(B * samples, length)``.

    They come from the seed of the pair's visit and nothing else, so that neither the other pairs of the batch nor the
    number of processes changes what a pair is given.

    Args:
        batch: B pairs.
        samples: captions per pair.
        length: most tokens of a caption.
        key: of the run and the epoch.
    """
    seeds = seeds_of(batch, key)
    rows = [torch.rand(samples, length, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    return torch.cat(rows)


def seeds_of(batch: PairBatch, key: str) -> list[int]:
    """A number for each pair that decides what is drawn for it, from the seed of its visit.

    Args:
        batch: B pairs.
        key: of the run and the epoch.
    """
    visits = [meta.get("seed") for meta in batch.meta] if batch.meta else [None] * len(batch)
    return [zlib.crc32(f"{key}/{id}/{visit}".encode()) for id, visit in zip(batch.ids, visits, strict=True)]


@dataclass(frozen=True, slots=True)
class Drawn:
    """K captions of each of B pairs before anything has judged them.

    Args:
        tokens: ``(B, K, T)``, the begin token first.
        mask: bool ``(B, K, T)``, True where a token was drawn.
        texts: of the captions.
        old: as of :class:`Rollout`.
    """

    tokens: Tensor
    mask: Tensor
    texts: list[list[str]]
    old: Tensor | None = None


Draw = Callable[[TrainingStep, int, float, float, str], Drawn]
"""What draws captions, with the arguments of :func:`draw`."""


def draw(step: TrainingStep, samples: int, temperature: float, top_p: float, key: str) -> Drawn:
    """Captions that the policy itself draws of a batch.

    Args:
        step: with batch and features.
        samples: K.
        temperature: of the sampling.
        top_p: of the sampling.
        key: of the run and the epoch.
    """
    host = step.host
    assert isinstance(host, PairCaptioner)
    uniforms = uniforms_of(step.batch, samples, host.hparams["max_length"], key)
    said = host.sample(step.features, samples, temperature, top_p, uniforms=uniforms)
    begin = host.built_vocabulary.special.bos
    rows = grouped([[begin, *ids] for ids in said.ids], samples)
    tokens, mask = pad_captions(rows, samples, host.built_vocabulary.special.pad)
    texts = grouped([host.built_vocabulary.decode(ids) for ids in said.ids], samples)
    return Drawn(tokens.to(host.device), mask.to(host.device), texts)


def grouped(rows: Sequence[Any], size: int) -> list[list[Any]]:
    """Rows in lists of ``size``."""
    return [list(rows[start : start + size]) for start in range(0, len(rows), size)]
