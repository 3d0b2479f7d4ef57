"""Rollouts: captions sampled from a policy, with their rewards and advantages.

Shapes: B pairs, K captions per pair, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from lightning_idc.images.types import PairBatch
from lightning_idc.models.addon import TrainingStep
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.captions import pad_captions
from lightning_idc.models.random_state import uniform_of_pairs
from lightning_idc.nn.vocabulary import SpecialIds


@dataclass(slots=True)
class Rollout:
    """K captions of each of B pairs, sampled from the policy.

    Args:
        tokens: ``(B, K, T)``, the begin token first.
        mask: bool ``(B, K, T)``, True at sampled tokens.
        rewards: ``(B, K)``.
        advantages: ``(B, K)``.
        old: log-probabilities at sampling time, ``(B, K, T)``; None in the step that sampled, unless a server gave
            them, with NaN at tokens for which it gave none.
        batch: batch of the captions, if more than one step trains on them.
        uses: number of steps that have trained on the captions.
    """

    tokens: Tensor
    mask: Tensor
    rewards: Tensor
    advantages: Tensor
    old: Tensor | None = None
    batch: PairBatch | None = None
    uses: int = 0

    def plain(self) -> dict[str, Any]:
        """Fields as plain types and tensors on the CPU, for a checkpoint."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.batch is not None:
            values["batch"] = self.batch.to("cpu").plain()
        return {name: value.cpu() if isinstance(value, Tensor) else value for name, value in values.items()}

    @classmethod
    def of_plain(cls, values: dict[str, Any]) -> Rollout:
        """Inverse of :meth:`plain`."""
        return cls(**{**values, "batch": None if values["batch"] is None else PairBatch.of_plain(values["batch"])})

    def to(self, device: torch.device) -> Rollout:
        """Copy with every tensor on a device."""
        moved: dict[str, Any] = {
            field.name: value.to(device)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor | PairBatch)
        }
        return replace(self, **moved)


def uniform_numbers(batch: PairBatch, samples: int, length: int, key: str) -> Tensor:
    """Uniform random numbers that decide the samples of each pair, ``(B * samples, length)``.

    They depend on the seed of the pair's visit and on nothing else, so that neither the other pairs of the batch nor
    the number of processes changes the samples of a pair.

    Args:
        batch: B pairs.
        samples: captions per pair.
        length: maximum number of tokens of a caption.
        key: key of the run and the epoch.
    """
    return uniform_of_pairs(batch, key, (samples, length)).flatten(0, 1)


@dataclass(frozen=True, slots=True)
class SampledCaptions:
    """K captions of each of B pairs, before their rewards are known.

    Args:
        tokens: ``(B, K, T)``, the begin token first.
        mask: bool ``(B, K, T)``, True at sampled tokens.
        texts: texts of the captions.
        ended: whether the policy ended each caption; False where it reached the maximum length.
        old: as in :class:`Rollout`.
    """

    tokens: Tensor
    mask: Tensor
    texts: list[list[str]]
    ended: list[list[bool]]
    old: Tensor | None = None


CaptionSampler = Callable[[TrainingStep[PairCaptioner], int, float, float, str], SampledCaptions]
"""A function that samples captions, with the arguments of :func:`sample_captions`."""


def sample_captions(
    step: TrainingStep[PairCaptioner], samples: int, temperature: float, top_p: float, key: str
) -> SampledCaptions:
    """Sample captions from the policy that is trained.

    Args:
        step: training step, with its batch and features.
        samples: K, captions per pair.
        temperature: sampling temperature.
        top_p: probability mass of the tokens to sample from.
        key: key of the run and the epoch.
    """
    captioner = step.module
    uniforms = uniform_numbers(step.batch, samples, captioner.hparams["max_length"], key)
    sampled = captioner.decoder.sample(step.features, samples, temperature, top_p, uniforms=uniforms)
    special = captioner.built_vocabulary.special
    begin = special.bos
    ended = grouped([has_end(ids, special) for ids in sampled.ids], samples)
    rows = grouped([[begin, *ids] for ids in sampled.ids], samples)
    tokens, mask = pad_captions(rows, samples, special.pad)
    texts = grouped([captioner.built_vocabulary.decode(ids) for ids in sampled.ids], samples)
    return SampledCaptions(tokens.to(captioner.device), mask.to(captioner.device), texts, ended)


def has_end(ids: Sequence[int], special: SpecialIds) -> bool:
    """Whether a generated caption ends with an end token."""
    return bool(ids) and ids[-1] in special.ends


def grouped(rows: Sequence[Any], size: int) -> list[list[Any]]:
    """Rows in lists of ``size``."""
    return [list(rows[start : start + size]) for start in range(0, len(rows), size)]
