"""Retrieval between image pairs and captions: what an encoder of both offers, its loss, and recall at k."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional as F

from lightning_idc.utils.errors import ConfigError, DataError

PLACES = (1, 5, 10)


@runtime_checkable
class PairTextEncoder(Protocol):
    """Maps pairs of images and captions into one space, where the cosine says how well they fit."""

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


def also_right(references: Sequence[Sequence[str]], captions: Sequence[str]) -> Tensor:
    """Which captions of other pairs are references of a pair as well: bool ``(N, N)``, pairs by captions.

    Args:
        references: of each of N pairs.
        captions: one of each pair.

    Example:
        >>> also_right([["same"], ["a cube moved"], ["same", "no change"]], ["same", "a cube moved", "no change"])
        tensor([[False, False, False],
                [False, False, False],
                [ True, False, False]])
    """
    own = [{" ".join(text.lower().split()) for text in texts} for texts in references]
    said = [" ".join(caption.lower().split()) for caption in captions]
    rows = [[place != other and text in texts for other, text in enumerate(said)] for place, texts in enumerate(own)]
    return torch.tensor(rows)


def ranks(similarity: Tensor, relevant: Tensor) -> Tensor:
    """Place of the best relevant candidate of every query, counted from 1, ``(Q,)``.

    An irrelevant candidate of the same similarity stands before it, so that a constant similarity finds nothing.

    Args:
        similarity: of queries to candidates, ``(Q, N)``.
        relevant: bool ``(Q, N)``, True where the candidate answers the query.

    Raises:
        DataError: a query has no relevant candidate.
    """
    if not bool(relevant.any(1).all()):
        lost = (~relevant.any(1)).nonzero()[:5, 0].tolist()
        raise DataError(f"the queries {lost} have no relevant candidate; leave pairs without captions out")
    best = similarity.masked_fill(~relevant, float("-inf")).amax(1, keepdim=True)
    return 1 + ((similarity >= best) & ~relevant).sum(1)


def recall_at(similarity: Tensor, relevant: Tensor, places: Sequence[int] = PLACES) -> dict[str, float]:
    """Percentage of queries with a relevant candidate among the first k: ``{"R@1": ..., "R@5": ..., "R@10": ...}``.

    Args:
        similarity: of queries to candidates, ``(Q, N)``; give both transposed for the other direction.
        relevant: bool ``(Q, N)``, True where the candidate answers the query.
        places: the k.

    Raises:
        DataError: a query has no relevant candidate.
    """
    return _recall(ranks(similarity, relevant), places)


def recall_of_pairs(pairs: Tensor, captions: Tensor, relevant: Tensor, rows: int = 1024) -> dict[str, dict[str, float]]:
    """:func:`recall_at` in both directions: ``{"pair_to_text": {...}, "text_to_pair": {...}}``.

    Args:
        pairs: unit vectors ``(P, D)``.
        captions: unit vectors ``(C, D)`` of distinct captions.
        relevant: bool ``(P, C)``, True where a pair has the caption as a reference.
        rows: queries looked at together; bounds the memory.
    """

    def recall(queries: Tensor, candidates: Tensor, answers: Tensor) -> dict[str, float]:
        parts = zip(queries.split(rows), answers.split(rows), strict=True)
        found = torch.cat([ranks(part @ candidates.T, wanted) for part, wanted in parts])
        return _recall(found, PLACES)

    return {
        "pair_to_text": recall(pairs, captions, relevant),
        "text_to_pair": recall(captions, pairs, relevant.T),
    }


def _recall(found: Tensor, places: Sequence[int]) -> dict[str, float]:
    return {f"R@{k}": 100 * (found <= k).double().mean().item() for k in places}
