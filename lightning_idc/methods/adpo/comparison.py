"""Comparison: log-probabilities of the chosen and rejected captions of a batch, the input of every preference loss."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Comparison:
    """K chosen captions of each of B pairs, each against one rejected caption; a caption is one sample.

    Args:
        chosen: log-probability of the chosen captions under the policy, summed over tokens, ``(B, K)``.
        rejected: log-probability of the rejected captions, likewise.
        reference_chosen: of the chosen captions under the reference policy; zeros without one.
        reference_rejected: of the rejected captions under the reference policy.
        chosen_lengths: number of tokens of the chosen captions, ``(B, K)``; 1 where ``chosen`` holds means.
        rejected_lengths: number of tokens of the rejected captions.
        present: bool ``(B, K)``, False where a pair has fewer than K chosen captions.
        margin: preference margin of the data, ``(B, K)``; None where the data has none.
    """

    chosen: Tensor
    rejected: Tensor
    reference_chosen: Tensor
    reference_rejected: Tensor
    chosen_lengths: Tensor
    rejected_lengths: Tensor
    present: Tensor
    margin: Tensor | None = None

    @classmethod
    def of(
        cls,
        policy: Tensor,
        reference: Tensor,
        lengths: Tensor,
        margin: Tensor | None = None,
        count: int | None = None,
    ) -> Comparison:
        """Comparison of K chosen captions with S K rejected ones (S sources).

        Args:
            policy: summed log-probabilities ``(B, K + S K)``, the chosen captions first.
            reference: the same under the reference policy.
            lengths: tokens of each caption ``(B, K + S K)``; 0 marks an absent one.
            margin: ``(B, S K)`` or None.
            count: K; half of the captions when None.
        """
        num_chosen = policy.shape[1] // 2 if count is None else count

        def split(values: Tensor) -> tuple[Tensor, Tensor]:
            rejected = values[:, num_chosen:]  # (B, S K)
            return values[:, :num_chosen].repeat(1, rejected.shape[1] // num_chosen), rejected

        (chosen, rejected), (reference_chosen, reference_rejected) = split(policy), split(reference)
        chosen_lengths, rejected_lengths = split(lengths)
        present = (chosen_lengths > 0) & (rejected_lengths > 0)
        return cls(
            chosen=chosen,
            rejected=rejected,
            reference_chosen=reference_chosen,
            reference_rejected=reference_rejected,
            chosen_lengths=chosen_lengths,
            rejected_lengths=rejected_lengths,
            present=present,
            margin=margin,
        )

    @property
    def chosen_ratio(self) -> Tensor:
        """Log-ratio of the chosen captions: log-probability under the policy minus that under the reference."""
        return self.chosen - self.reference_chosen

    @property
    def rejected_ratio(self) -> Tensor:
        """Log-ratio of the rejected captions."""
        return self.rejected - self.reference_rejected

    @property
    def log_ratio(self) -> Tensor:
        """Log-ratio of the chosen caption minus that of the rejected one."""
        return self.chosen_ratio - self.rejected_ratio

    def per_token(self) -> Comparison:
        """The same with means over tokens instead of sums; applied twice it changes nothing more."""
        num_chosen_tokens = self.chosen_lengths.clamp(min=1)
        num_rejected_tokens = self.rejected_lengths.clamp(min=1)
        return replace(
            self,
            chosen=self.chosen / num_chosen_tokens,
            rejected=self.rejected / num_rejected_tokens,
            reference_chosen=self.reference_chosen / num_chosen_tokens,
            reference_rejected=self.reference_rejected / num_rejected_tokens,
            # otherwise a loss that takes means itself would divide once more
            chosen_lengths=self.chosen_lengths.clamp(max=1),
            rejected_lengths=self.rejected_lengths.clamp(max=1),
        )

    def mean(self, values: Tensor) -> Tensor:
        """Mean over pairs of the mean over their comparisons, so that accumulated steps equal one big step.

        Args:
            values: ``(B, K)``; ignored where absent.
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
