"""Comparison: all that a preference loss may know of the chosen and the rejected captions of a batch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Comparison:
    """K chosen captions of each of B pairs, each against one rejected caption; a caption is one sample.

    Args:
        chosen: log-probability of the chosen captions under the policy, summed over tokens, ``(B, K)``.
        rejected: of the rejected captions.
        reference_chosen: of the chosen captions under the reference policy; zeros without one.
        reference_rejected: of the rejected captions under the reference policy.
        chosen_lengths: tokens that the chosen captions' sums run over, ``(B, K)``; 1 where they are means.
        rejected_lengths: of the rejected captions.
        present: bool ``(B, K)``, False where a pair has fewer than K chosen captions.
        margin: by how much the data says that the chosen caption is better, ``(B, K)``; None where it says nothing.
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
        """Comparison of K chosen captions with S times K rejected ones beside them.

        Args:
            policy: summed log-probabilities ``(B, K + S K)``, the chosen captions first.
            reference: the same under the reference policy.
            lengths: tokens of each caption ``(B, K + S K)``; 0 marks an absent one.
            margin: ``(B, S K)`` or None.
            count: K; half of the captions when None.
        """
        first = policy.shape[1] // 2 if count is None else count

        def both(values: Tensor) -> tuple[Tensor, Tensor]:
            rejected = values[:, first:]
            return values[:, :first].repeat(1, rejected.shape[1] // first), rejected

        (chosen, rejected), (known_chosen, known_rejected) = both(policy), both(reference)
        chosen_lengths, rejected_lengths = both(lengths)
        present = (chosen_lengths > 0) & (rejected_lengths > 0)
        return cls(chosen, rejected, known_chosen, known_rejected, chosen_lengths, rejected_lengths, present, margin)

    @property
    def chosen_ratio(self) -> Tensor:
        """Log-ratio of the chosen captions: how much likelier than under the reference policy."""
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
        """The same with means over tokens instead of sums; means of means are themselves."""
        first, second = self.chosen_lengths.clamp(min=1), self.rejected_lengths.clamp(min=1)
        return replace(
            self,
            chosen=self.chosen / first,
            rejected=self.rejected / second,
            reference_chosen=self.reference_chosen / first,
            reference_rejected=self.reference_rejected / second,
            # or a loss that takes means itself would divide once more
            chosen_lengths=self.chosen_lengths.clamp(max=1),
            rejected_lengths=self.rejected_lengths.clamp(max=1),
        )

    def mean(self, values: Tensor) -> Tensor:
        """Mean over pairs of the mean over their comparisons, so that accumulated steps equal one big step.

        Args:
            values: ``(B, K)``; not counted where absent.
        """
        return mean_of_means(values, self.present)


def mean_of_means(values: Tensor, present: Tensor) -> Tensor:
    """Mean over pairs of the mean over their captions.

    Args:
        values: ``(B, K)``.
        present: bool ``(B, K)``, False at padding.
    """
    counted = torch.where(present, values, torch.zeros_like(values))
    return (counted.sum(1) / present.sum(1).clamp(min=1)).mean()
