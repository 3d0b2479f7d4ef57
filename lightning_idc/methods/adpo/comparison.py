"""Comparison: log-probabilities of the chosen and rejected captions of a batch, the input of every preference loss."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Comparison:
    """K chosen captions of each of B pairs, each compared with one rejected caption. A caption is one sample.

    Names are those of TRL's ``DPOTrainer``: ``logps`` are log-probabilities summed over tokens.

    Args:
        chosen_logps: log-probability of each chosen caption under the policy, ``(B, K)``.
        rejected_logps: log-probability of each rejected caption under the policy, ``(B, K)``.
        ref_chosen_logps: log-probability of each chosen caption under the reference policy; zeros without one.
        ref_rejected_logps: log-probability of each rejected caption under the reference policy.
        chosen_lengths: number of tokens of the chosen captions, ``(B, K)``; 1 where ``chosen_logps`` are means.
        rejected_lengths: number of tokens of the rejected captions, ``(B, K)``.
        present: bool ``(B, K)``, False where a pair has fewer than K chosen captions.
        margin: preference margin of the data, ``(B, K)``; None where the data has no margin.
    """

    chosen_logps: Tensor
    rejected_logps: Tensor
    ref_chosen_logps: Tensor
    ref_rejected_logps: Tensor
    chosen_lengths: Tensor
    rejected_lengths: Tensor
    present: Tensor
    margin: Tensor | None = None

    @classmethod
    def from_logps(
        cls,
        logps: Tensor,
        ref_logps: Tensor,
        lengths: Tensor,
        margin: Tensor | None = None,
        num_chosen: int | None = None,
    ) -> Comparison:
        """Compare K chosen captions with S K rejected ones (S sources of negatives).

        Args:
            logps: log-probabilities under the policy ``(B, K + S K)``, the chosen captions first.
            ref_logps: log-probabilities under the reference policy, ``(B, K + S K)``.
            lengths: number of tokens of each caption ``(B, K + S K)``; 0 marks an absent caption.
            margin: preference margin of the data, ``(B, S K)``; None where the data has no margin.
            num_chosen: K; half of the captions when None.
        """
        if num_chosen is None:
            num_chosen = logps.shape[1] // 2

        def split(values: Tensor) -> tuple[Tensor, Tensor]:
            """(B, K + S K) -> two tensors (B, S K): the chosen captions, once per source, and the rejected ones."""
            rejected = values[:, num_chosen:]
            return values[:, :num_chosen].repeat(1, rejected.shape[1] // num_chosen), rejected

        chosen_logps, rejected_logps = split(logps)
        ref_chosen_logps, ref_rejected_logps = split(ref_logps)
        chosen_lengths, rejected_lengths = split(lengths)
        return cls(
            chosen_logps=chosen_logps,
            rejected_logps=rejected_logps,
            ref_chosen_logps=ref_chosen_logps,
            ref_rejected_logps=ref_rejected_logps,
            chosen_lengths=chosen_lengths,
            rejected_lengths=rejected_lengths,
            present=(chosen_lengths > 0) & (rejected_lengths > 0),
            margin=margin,
        )

    @property
    def chosen_logratios(self) -> Tensor:
        """Log-ratio of policy to reference for each chosen caption, ``(B, K)``."""
        return self.chosen_logps - self.ref_chosen_logps

    @property
    def rejected_logratios(self) -> Tensor:
        """Log-ratio of policy to reference for each rejected caption, ``(B, K)``."""
        return self.rejected_logps - self.ref_rejected_logps

    @property
    def logits(self) -> Tensor:
        """Log-ratio of the chosen caption minus that of the rejected one, ``(B, K)``: the margin M without beta."""
        return self.chosen_logratios - self.rejected_logratios

    def per_token(self) -> Comparison:
        """A copy with means over tokens in place of sums. Idempotent: the copy's lengths are 1."""
        num_chosen_tokens = self.chosen_lengths.clamp(min=1)
        num_rejected_tokens = self.rejected_lengths.clamp(min=1)
        return replace(
            self,
            chosen_logps=self.chosen_logps / num_chosen_tokens,
            rejected_logps=self.rejected_logps / num_rejected_tokens,
            ref_chosen_logps=self.ref_chosen_logps / num_chosen_tokens,
            ref_rejected_logps=self.ref_rejected_logps / num_rejected_tokens,
            # without this, a loss that takes means itself would divide a second time
            chosen_lengths=self.chosen_lengths.clamp(max=1),
            rejected_lengths=self.rejected_lengths.clamp(max=1),
        )

    def mean(self, values: Tensor) -> Tensor:
        """Mean over pairs of the mean over their comparisons, so that accumulated steps equal one large step.

        Args:
            values: ``(B, K)``; ignored where ``present`` is False.
        """
        return mean_of_means(values, self.present)


def mean_of_means(values: Tensor, present: Tensor) -> Tensor:
    """Mean over pairs of the mean over their captions.

    Args:
        values: ``(B, K)``.
        present: bool ``(B, K)``, False at padding.
    """
    masked = torch.where(present, values, torch.zeros_like(values))
    return (masked.sum(1) / present.sum(1).clamp(min=1)).mean()
