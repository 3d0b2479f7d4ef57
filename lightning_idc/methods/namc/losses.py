"""Contrastive losses of image and text embeddings: similarity distribution matching (SDM) and InfoNCE."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

SCALE = 50.0
"""1 / temperature. NAMC does not state its temperature; Jiang and Ye 2023, whose loss it uses, have 0.02."""


def cosines(images: Tensor, texts: Tensor) -> Tensor:
    """Cosine of every image ``(..., N, D)`` with every text ``(..., M, D)``: ``(..., N, M)``, at least in float32.

    Under autocast the product would be rounded to half precision, where the 1e-8 of :func:`sdm` is 0 and a cosine near
    1 has only two or three digits.
    """
    precision = torch.promote_types(images.dtype, torch.float32)
    with torch.autocast(images.device.type, enabled=False):
        return F.normalize(images.to(precision), dim=-1) @ F.normalize(texts.to(precision), dim=-1).mT


def late_interaction(patches: Tensor, words: Tensor, valid: Tensor) -> Tensor:
    """Similarity of every image with every text, ``(N, M)``: for each word the cosine of its best patch, then the mean.

    FILIP (Yao et al. 2022) averages over patches as well; here only over words, as most patches show background that no
    word describes.

    Args:
        patches: ``(N, P, D)``.
        words: ``(M, T, D)``.
        valid: bool ``(M, T)``, True at tokens of words.

    Example:
        >>> images = torch.eye(2)[None].expand(2, 2, 2)  # each image has one patch per word
        >>> late_interaction(images, torch.eye(2)[:, None], torch.ones(2, 1).bool())
        tensor([[1., 1.],
                [1., 1.]])
    """
    similarity = torch.einsum("npd,mtd->nmtp", F.normalize(patches, dim=-1), F.normalize(words, dim=-1))
    best = similarity.amax(-1)  # (N, M, T)
    return (best * valid).sum(-1) / valid.sum(-1).clamp(min=1)


def _matching_distribution(similarity: Tensor, labels: Tensor | None) -> Tensor:
    """True matching distribution q of each row, ``(B, B)``, a symmetric matrix.

    NAMC Eq. 13
    """
    if labels is None:
        return torch.eye(len(similarity), dtype=similarity.dtype, device=similarity.device)
    same = (labels[:, None] == labels[None]).to(similarity.dtype)
    return same / same.sum(1, keepdim=True)


def sdm(images: Tensor, texts: Tensor, labels: Tensor | None = None, scale: float = SCALE) -> Tensor:
    """Similarity distribution matching in both directions (NAMC Eq. 13 to 15; Jiang and Ye 2023).

    NAMC Eq. 14
    NAMC Eq. 15

    The KL divergence KL(p || q) of the modelled matching distribution p from the true distribution q, averaged over the
    batch and summed over both directions.

    Args:
        images: global embeddings ``(B, D)``, normalised here.
        texts: global embeddings ``(B, D)``, normalised here.
        labels: int64 ``(B,)``; images and texts with equal labels match. When None, image i matches text i only.
        scale: 1 / temperature.

    Example:
        >>> right, wrong = torch.eye(2), torch.eye(2).flip(0)
        >>> sdm(torch.eye(2), right) < 1e-6, sdm(torch.eye(2), wrong) > 30
        (tensor(True), tensor(True))
    """
    similarity = cosines(images, texts)
    # the true distribution has zeros; the reference implementation adds 1e-8 before the logarithm
    log_true = (_matching_distribution(similarity, labels) + 1e-8).log()

    def divergence(logits: Tensor) -> Tensor:
        log_modelled = logits.log_softmax(1)
        return (log_modelled.exp() * (log_modelled - log_true)).sum(1).mean()

    return divergence(scale * similarity) + divergence(scale * similarity.mT)


def info_nce_of_similarity(similarity: Tensor, labels: Tensor | None = None, scale: float = SCALE) -> Tensor:
    """:func:`info_nce` from a similarity matrix.

    Args:
        similarity: similarity of image i with text j, ``(B, B)``.
        labels: as in :func:`sdm`.
        scale: 1 / temperature.

    Example:
        >>> info_nce_of_similarity(torch.zeros(2, 2))  # twice log 2
        tensor(1.3863)
    """
    true, logits = _matching_distribution(similarity, labels), scale * similarity
    return -((true * logits.log_softmax(1)).sum(1) + (true * logits.mT.log_softmax(1)).sum(1)).mean()


def info_nce(images: Tensor, texts: Tensor, labels: Tensor | None = None, scale: float = SCALE) -> Tensor:
    """InfoNCE in both directions: minus the log-probability of the true partner (ablation of NAMC's Table 7).

    Args:
        images: global embeddings ``(B, D)``, normalised here.
        texts: global embeddings ``(B, D)``, normalised here.
        labels: as in :func:`sdm`; several partners have equal target probabilities.
        scale: 1 / temperature.

    Example:
        >>> info_nce(torch.ones(2, 2), torch.ones(2, 2))
        tensor(1.3863)
    """
    return info_nce_of_similarity(cosines(images, texts), labels, scale)
