"""The losses of ProCap's first stage (section 3.1, Eq. 5 to 8), and the choice of negative captions."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional as F


def masked_sequence_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy over the masked patches of a batch; 0 if no patch is masked.

    ProCap Eq. 6

    Args:
        logits: logits of the M masked patches, ``(M, codebook)``.
        targets: ids of the masked patches, ``(M,)``.

    Example:
        >>> import torch
        >>> masked_sequence_loss(torch.zeros(3, 4), torch.tensor([0, 1, 2]))  # log 4
        tensor(1.3863)
    """
    return F.cross_entropy(logits.float(), targets, reduction="sum") / max(1, len(targets))


def discrimination_loss(positive: Tensor, negative: Tensor, positive_mask: Tensor, negative_mask: Tensor) -> Tensor:
    """Binary cross entropy: -log p(1 | positive) - log p(0 | negative), with a mean over the samples of each mask.

    ProCap Eq. 7
    ProCap Eq. 8

    Args:
        positive: logits of positives, ``(B,)``.
        negative: logits of negatives, ``(B,)``.
        positive_mask: bool ``(B,)``, True for positives that count; without any, the first term is 0.
        negative_mask: bool ``(B,)``, True for negatives that count; without any, the second term is 0.

    Example:
        >>> import torch
        >>> mask = torch.tensor([True, True])
        >>> discrimination_loss(torch.zeros(2), torch.zeros(2), mask, mask)  # 2 log 2
        tensor(1.3863)
    """
    positives = (F.softplus(-positive.float()) * positive_mask).sum() / positive_mask.sum().clamp(min=1)
    negatives = (F.softplus(negative.float()) * negative_mask).sum() / negative_mask.sum().clamp(min=1)
    return positives + negatives


def mean_consistency_loss(intact: Tensor, broken: Tensor, visible: Tensor) -> Tensor:
    """Consistency loss (Eq. 8), as a mean over the procedures that are not fully masked.

    Args:
        intact: logits of intact procedures, ``(B,)``.
        broken: logits of broken procedures, ``(B,)``.
        visible: bool ``(B,)``, False for fully masked procedures.
    """
    return discrimination_loss(intact, broken, visible, visible)


def captions_of_others(captions: Sequence[list[int]], references: Sequence[Sequence[list[int]]]) -> list[int]:
    """Index of the negative caption of each pair: the next caption of the batch that is not a reference of the pair.

    Args:
        captions: sampled caption of each pair, as ids.
        references: all captions of each pair, as ids.

    Returns:
        one index per pair; -1 if all captions of the batch are references of the pair.
    """
    count = len(captions)
    negatives = []
    for row, correct in enumerate(references):
        others = ((row + step) % count for step in range(1, count))
        negatives.append(next((other for other in others if captions[other] not in [captions[row], *correct]), -1))
    return negatives
