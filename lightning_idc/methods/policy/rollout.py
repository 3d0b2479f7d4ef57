"""Rollouts: captions sampled from a policy, with their rewards and advantages.

Shapes: B pairs, K captions per pair, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

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
        old_log_probs: log-probabilities at sampling time, ``(B, K, T)`` (TRL's ``old_per_token_logps``). None if the
            policy has sampled the captions in this step; NaN for tokens whose log-probability a server has left out.
        batch: batch of the captions, if more than one step trains on them.
        num_uses: number of steps that have trained on the captions.
    """

    tokens: Tensor
    mask: Tensor
    rewards: Tensor
    advantages: Tensor
    old_log_probs: Tensor | None = None
    batch: PairBatch | None = None
    num_uses: int = 0

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
    """Uniform random numbers for sampling, ``(B * samples, length)``: one for each token of each caption.

    They depend only on the pair and its seed, so that neither the other pairs of the batch nor the number of processes
    changes the samples of a pair.

    Args:
        batch: B pairs.
        samples: K, number of captions per pair.
        length: maximum number of tokens of a caption.
        key: key of the run and the epoch.
    """
    return uniform_of_pairs(batch, key, (samples, length)).flatten(0, 1)


@dataclass(frozen=True, slots=True)
class SampledCaptions:
    """K sampled captions of each of B pairs, without rewards.

    Args:
        tokens: ``(B, K, T)``, the begin token first.
        mask: bool ``(B, K, T)``, True at sampled tokens.
        texts: K texts of each of B pairs.
        ended: whether the policy ended each caption; False where it reached the maximum length.
        old_log_probs: as in :class:`Rollout`.
    """

    tokens: Tensor
    mask: Tensor
    texts: list[list[str]]
    ended: list[list[bool]]
    old_log_probs: Tensor | None = None


class CaptionSampler(Protocol):
    """A function that samples captions, with the arguments of :func:`sample_captions`."""

    def __call__(
        self, step: TrainingStep[PairCaptioner], samples: int, temperature: float, top_p: float, key: str
    ) -> SampledCaptions: ...


def sample_captions(
    step: TrainingStep[PairCaptioner], samples: int, temperature: float, top_p: float, key: str
) -> SampledCaptions:
    """Sample captions from the policy in training.

    Args:
        step: training step, with its batch and features.
        samples: K, number of captions per pair.
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
    """Split rows into consecutive lists of ``size``."""
    return [list(rows[start : start + size]) for start in range(0, len(rows), size)]
