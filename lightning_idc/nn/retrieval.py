"""Retrieval between image pairs and captions: interface of encoders, contrastive loss, and recall at k."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional as F

from lightning_idc.utils.errors import ConfigError, DataError

RECALL_RANKS = (1, 5, 10)


@runtime_checkable
class PairTextEncoder(Protocol):
    """Maps pairs of images and captions into one space, in which the cosine is their similarity."""

    def embed_pairs(self, images: Tensor) -> Tensor:
        """Unit vectors ``(B, D)`` of uint8 pairs ``(B, 2, 3, H, W)``."""

    def embed_captions(self, captions: Sequence[str]) -> Tensor:
        """Unit vectors ``(N, D)`` of captions."""


def symmetric_cross_entropy(logits: Tensor) -> Tensor:
    """Mean of the cross entropies of rows and of columns, with the diagonal as the targets.

    Radford et al. 2021; CLIP4IDC's adaptation loss.

    Args:
        logits: scaled similarities ``(N, N)``; row i and column i belong together.

    Raises:
        ConfigError: the matrix is not square.

    Example:
        >>> symmetric_cross_entropy(torch.zeros(2, 2))  # log 2
        tensor(0.6931)
    """
    if logits.ndim != 2 or logits.shape[0] != logits.shape[1]:
        raise ConfigError(
            f"symmetric cross entropy needs one caption per pair, logits (N, N); found {tuple(logits.shape)}"
        )
    targets = torch.arange(len(logits), device=logits.device)
    return (F.cross_entropy(logits, targets) + F.cross_entropy(logits.T, targets)) / 2


def is_reference_of_other(references: Sequence[Sequence[str]], captions: Sequence[str]) -> Tensor:
    """Which captions of other pairs are also references of a pair: bool ``(N, N)``, pairs by captions.

    Args:
        references: references of each of N pairs.
        captions: one caption of each pair.

    Example:
        >>> references = [["same"], ["a cube moved"], ["same", "no change"]]
        >>> is_reference_of_other(references, ["same", "a cube moved", "no change"])
        tensor([[False, False, False],
                [False, False, False],
                [ True, False, False]])
    """
    reference_sets = [{" ".join(text.lower().split()) for text in texts} for texts in references]
    normalised = [" ".join(caption.lower().split()) for caption in captions]
    return torch.tensor(
        [
            [pair != other and text in texts for other, text in enumerate(normalised)]
            for pair, texts in enumerate(reference_sets)
        ]
    )


def ranks(similarity: Tensor, relevant: Tensor) -> Tensor:
    """Rank of the best relevant candidate of every query, from 1, ``(Q,)``.

    Irrelevant candidates of the same similarity rank before it, so that a constant similarity has the worst rank.

    Args:
        similarity: similarity of queries and candidates, ``(Q, N)``.
        relevant: bool ``(Q, N)``, True where the candidate is correct.

    Raises:
        DataError: a query has no relevant candidate.
    """
    if not bool(relevant.any(1).all()):
        unanswered = (~relevant.any(1)).nonzero()[:5, 0].tolist()
        raise DataError(f"the queries {unanswered} have no relevant candidate; leave pairs without captions out")
    best = similarity.masked_fill(~relevant, float("-inf")).amax(1, keepdim=True)
    return 1 + ((similarity >= best) & ~relevant).sum(1)


def recall_at(similarity: Tensor, relevant: Tensor, ks: Sequence[int] = RECALL_RANKS) -> dict[str, float]:
    """Percentage of queries with a relevant candidate among the first k: ``{"R@1": ..., "R@5": ..., "R@10": ...}``.

    Args:
        similarity: similarity of queries and candidates, ``(Q, N)``; give both transposed for the other direction.
        relevant: bool ``(Q, N)``, True where the candidate is correct.
        ks: values of k.

    Raises:
        DataError: a query has no relevant candidate.
    """
    return _recall(ranks(similarity, relevant), ks)


def recall_of_pairs(pairs: Tensor, captions: Tensor, relevant: Tensor, rows: int = 1024) -> dict[str, dict[str, float]]:
    """:func:`recall_at` in both directions: ``{"pair_to_text": {...}, "text_to_pair": {...}}``.

    Args:
        pairs: unit vectors ``(P, D)``.
        captions: unit vectors ``(C, D)`` of distinct captions.
        relevant: bool ``(P, C)``, True where a pair has the caption as a reference.
        rows: number of queries per block, which bounds the memory.
    """

    def recall(queries: Tensor, candidates: Tensor, answers: Tensor) -> dict[str, float]:
        parts = zip(queries.split(rows), answers.split(rows), strict=True)
        all_ranks = torch.cat([ranks(part @ candidates.T, relevant_part) for part, relevant_part in parts])
        return _recall(all_ranks, RECALL_RANKS)

    return {
        "pair_to_text": recall(pairs, captions, relevant),
        "text_to_pair": recall(captions, pairs, relevant.T),
    }


def _recall(query_ranks: Tensor, ks: Sequence[int]) -> dict[str, float]:
    return {f"R@{k}": 100 * (query_ranks <= k).double().mean().item() for k in ks}
