"""The losses of ProCap's first stage (section 3.1, eq. 5 to 8), and which captions are its negatives."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional as F


def masked_sequence_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy at the masked patches of the batch; 0 without any.

    ProCap Eq. 6

    Args:
        logits: at the M masked patches, ``(M, codebook)``.
        targets: their ids, ``(M,)``.

    Example:
        >>> import torch
        >>> masked_sequence_loss(torch.zeros(3, 4), torch.tensor([0, 1, 2]))  # log 4
        tensor(1.3863)
    """
    return F.cross_entropy(logits.float(), targets, reduction="sum") / max(1, len(targets))


def discrimination_loss(positive: Tensor, negative: Tensor, positive_mask: Tensor, negative_mask: Tensor) -> Tensor:
    """-log p(1 | positive) - log p(0 | negative), each a mean over the samples that count; 0 without any.

    ProCap Eq. 7
    ProCap Eq. 8

    Args:
        positive: logits of positives, ``(B,)``.
        negative: logits of negatives, ``(B,)``.
        positive_mask: bool ``(B,)``, True where ``positive`` counts.
        negative_mask: bool ``(B,)``, True where ``negative`` counts.

    Example:
        >>> import torch
        >>> everyone = torch.tensor([True, True])
        >>> discrimination_loss(torch.zeros(2), torch.zeros(2), everyone, everyone)  # twice log 2
        tensor(1.3863)
    """
    positives = (F.softplus(-positive.float()) * positive_mask).sum() / positive_mask.sum().clamp(min=1)
    negatives = (F.softplus(negative.float()) * negative_mask).sum() / negative_mask.sum().clamp(min=1)
    return positives + negatives


def mean_consistency_loss(intact: Tensor, broken: Tensor, visible: Tensor) -> Tensor:
    """Eq. 8 as a mean over the procedures that are not fully masked.

    Args:
        intact: logits of intact procedures, ``(B,)``.
        broken: logits of broken procedures, ``(B,)``.
        visible: bool ``(B,)``, False where everything is masked.
    """
    return discrimination_loss(intact, broken, visible, visible)


def captions_of_others(captions: Sequence[list[int]], references: Sequence[Sequence[list[int]]]) -> list[int]:
    """Negative caption of each pair: index of the next pair whose caption is not a reference of it; -1 without one.

    Args:
        captions: drawn caption of each pair, as ids.
        references: all captions of each pair, as ids.
    """
    count = len(captions)
    negatives = []
    for row, correct in enumerate(references):
        others = ((row + step) % count for step in range(1, count))
        negatives.append(next((other for other in others if captions[other] not in [captions[row], *correct]), -1))
    return negatives
