"""Retrieval between image pairs and captions: encoder interface, contrastive loss (InfoNCE), and recall at k."""

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
    """Dual encoder: embeds pairs of images and captions in one space, with cosine similarity."""

    def embed_pairs(self, images: Tensor) -> Tensor:
        """Unit vectors ``(B, D)`` of uint8 pairs ``(B, 2, 3, H, W)``."""

    def embed_captions(self, captions: Sequence[str]) -> Tensor:
        """Unit vectors ``(N, D)`` of captions."""


def symmetric_cross_entropy(logits: Tensor) -> Tensor:
    """Symmetric InfoNCE: mean cross entropy of rows and of columns, with the diagonal as targets.

    CLIP's contrastive loss (Radford et al. 2021), and the adaptation loss of CLIP4IDC.

    Args:
        logits: similarities divided by the temperature, ``(N, N)``; row i and column i are a positive pair.

    Raises:
        ConfigError: the matrix is not square.

    Example:
        >>> symmetric_cross_entropy(torch.zeros(2, 2))  # log 2
        tensor(0.6931)
    """
    if logits.ndim != 2 or logits.shape[0] != logits.shape[1]:
        raise ConfigError(
            f"logits are {tuple(logits.shape)}; expected (N, N), one caption per pair, for a symmetric cross entropy"
        )
    targets = torch.arange(len(logits), device=logits.device)
    return (F.cross_entropy(logits, targets) + F.cross_entropy(logits.T, targets)) / 2


def is_reference_of_other(references: Sequence[Sequence[str]], captions: Sequence[str]) -> Tensor:
    """False negatives: True where the caption of another pair is also a reference of this pair, bool ``(N, N)``.

    Rows are pairs, columns captions.

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
    """Rank of the most similar relevant candidate of each query, ``(Q,)``, starting at 1.

    Ties count against it: irrelevant candidates of equal similarity rank first.

    Args:
        similarity: similarity of queries and candidates, ``(Q, N)``.
        relevant: bool ``(Q, N)``, True at correct candidates.

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
        similarity: similarity of queries and candidates, ``(Q, N)``; for the other direction, transpose both arguments.
        relevant: bool ``(Q, N)``, True at correct candidates.
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
        relevant: bool ``(P, C)``, True if the caption is a reference of the pair.
        rows: number of queries per block, which bounds the memory.
    """

    def recall(queries: Tensor, candidates: Tensor, is_relevant: Tensor) -> dict[str, float]:
        blocks = zip(queries.split(rows), is_relevant.split(rows), strict=True)
        query_ranks = torch.cat([ranks(block @ candidates.T, relevant_block) for block, relevant_block in blocks])
        return _recall(query_ranks, RECALL_RANKS)

    return {
        "pair_to_text": recall(pairs, captions, relevant),
        "text_to_pair": recall(captions, pairs, relevant.T),
    }


def _recall(query_ranks: Tensor, ks: Sequence[int]) -> dict[str, float]:
    return {f"R@{k}": 100 * (query_ranks <= k).double().mean().item() for k in ks}
