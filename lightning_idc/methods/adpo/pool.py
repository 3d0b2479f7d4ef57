"""A pool of captions from which wrong ones are drawn for a pair."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from lightning_idc.core.types import PairError
from lightning_idc.core.vocabulary import words_of


def same_words(caption: str) -> str:
    """Form in which two captions are equal if they say the same words: lower case, spaces and all."""
    return " ".join(words_of(caption))


class CaptionPool:
    """Distinct captions of a training split.

    Args:
        captions: with duplicates, which are merged.

    Raises:
        PairError: there are fewer than two distinct ones.
    """

    def __init__(self, captions: Iterable[str]) -> None:
        distinct: dict[str, str] = {}
        for caption in captions:
            distinct.setdefault(same_words(caption), caption)
        if len(distinct) < 2:
            raise PairError(
                f"the training split has {len(distinct)} distinct captions; negatives need at least two to draw from"
            )
        self.texts = list(distinct.values())
        self._places = {words: place for place, words in enumerate(distinct)}

    def __len__(self) -> int:
        return len(self.texts)

    def draw(self, size: int, generator: torch.Generator, rank: int = 0, processes: int = 1) -> Tensor:
        """Places of ``size`` different captions, or of all where there are fewer.

        Several processes draw from shares of the pool, so that a step of theirs sees as many captions as there can be;
        from the whole pool where a share would be smaller than ``size``.

        Args:
            size: captions to draw.
            generator: of this process.
            rank: of this process.
            processes: that train together.
        """
        share = torch.arange(rank, len(self), processes)
        if len(self) < size * processes:
            share = torch.arange(len(self))
        return share[torch.randperm(len(share), generator=generator)[:size]]

    def places_of(self, captions: Iterable[str]) -> Tensor:
        """Places of captions of the pool, ``(N,)``."""
        return torch.tensor([self._places[same_words(caption)] for caption in captions])

    def wrong(self, candidates: Tensor, references: Sequence[Sequence[str]], empty: bool = False) -> Tensor:
        """Which candidates may be a negative of which pair: bool ``(B, N)``, False at a pair's own references.

        Args:
            candidates: places ``(N,)``.
            references: all captions of each of B pairs.
            empty: let a pair have no candidate.

        Raises:
            PairError: a pair is left without any candidate.
        """
        own = [[self._places.get(same_words(caption), -1) for caption in captions] for captions in references]
        allowed = torch.stack([~torch.isin(candidates, torch.tensor(places)) for places in own])
        if not empty and not bool(allowed.any(1).all()):
            raise PairError(
                f"all {len(candidates)} candidate captions are references of one pair; draw more candidates, or give "
                "the training split more different captions"
            )
        return allowed


def choose(
    logits: Tensor, allowed: Tensor, count: int, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Draw ``count`` candidates per pair, with replacement, from the softmax over those that are allowed.

    Args:
        logits: ``(B, N)``.
        allowed: bool ``(B, N)``.
        count: per pair.
        generator: of the processor; torch's global one when None.

    Returns:
        columns drawn, ``(B, count)`` on the processor, and the log-probabilities of all candidates, ``(B, N)``.
    """
    log_probs = logits.float().masked_fill(~allowed, float("-inf")).log_softmax(-1)
    # on the processor, where the texts are needed next, and where every device draws the same
    chances = log_probs.detach().exp().cpu()
    return torch.multinomial(chances, count, replacement=True, generator=generator), log_probs
