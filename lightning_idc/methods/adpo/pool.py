"""A pool of captions from which wrong ones are drawn for a pair."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from lightning_idc.nn.vocabulary import words_of
from lightning_idc.utils.errors import ConfigError, DataError

Weighting = Literal["frequency", "distinct", "stratified"]
NO_CHANGE_SHARE = 0.3
"""Share of the changed pairs whose negatives say that nothing changed."""
REDRAWS = 8
"""Draws of candidates before a pair that is left without any is an error."""


def same_words(caption: str) -> str:
    """Form in which two captions are equal if they say the same words: lower case, spaces and all."""
    return " ".join(words_of(caption))


class CaptionPool:
    """Captions of a training split, each with how often it is said.

    Args:
        captions: with duplicates; those that say the same words are one entry.
        weighting: how candidates are drawn. ``frequency``: as often as they are said, with repeats, as when captions of
            other pairs are drawn at random. ``distinct``: each entry once. ``stratified``: as often as they are said,
            but "nothing changed" is a stratum of its own (see :meth:`offer`).
        no_change: the sentences that say that nothing changed.
        no_change_share: in ``stratified``, share of the changed pairs whose negatives are such sentences.

    Raises:
        DataError: there are fewer than two distinct captions.
        ConfigError: the weighting is unknown or the share is none.
    """

    def __init__(
        self,
        captions: Iterable[str],
        weighting: Weighting = "frequency",
        no_change: Iterable[str] = (),
        no_change_share: float = 0.0,
    ) -> None:
        if weighting not in get_args(Weighting):
            raise ConfigError(f"weighting is {weighting!r}; expected one of {', '.join(get_args(Weighting))}")
        if not 0 <= no_change_share <= 1:
            raise ConfigError(f"no_change_share is {no_change_share}; expected a number between 0 and 1")
        self.weighting, self.no_change_share = weighting, no_change_share
        self.texts: list[str] = []
        self._places: dict[str, int] = {}
        said: list[int] = []
        for caption in captions:
            place = self._places.setdefault(same_words(caption), len(self.texts))
            if place == len(self.texts):
                self.texts.append(caption)
            said.append(place)
        if len(self.texts) < 2:
            raise DataError(
                f"the training split has {len(self.texts)} distinct captions; negatives need at least two to draw from"
            )
        unchanged = {same_words(caption) for caption in no_change}
        self.unchanged = torch.tensor([same_words(text) in unchanged for text in self.texts])
        every = torch.tensor(said)
        self._said = torch.arange(len(self.texts)) if weighting == "distinct" else every
        self._changes = every[~self.unchanged[every]]

    def __len__(self) -> int:
        return len(self.texts)

    def draw(self, size: int, generator: torch.Generator, rank: int = 0, processes: int = 1) -> Tensor:
        """Places of ``size`` captions, or of all where there are fewer.

        Several processes draw from shares of the pool, so that a step of theirs sees as many captions as there can be;
        from the same pool where a share would be smaller than ``size``.

        Args:
            size: captions to draw.
            generator: of this process.
            rank: of this process.
            processes: that train together.
        """
        if self.weighting == "stratified" and len(self._changes):
            same = self.unchanged.nonzero()[:, 0]
            return torch.cat([_drawn(self._changes, size, generator, rank, processes), same])
        return _drawn(self._said, size, generator, rank, processes)

    def offer(
        self,
        size: int,
        references: Sequence[Sequence[str]],
        generator: torch.Generator,
        rank: int = 0,
        processes: int = 1,
    ) -> tuple[Tensor, Tensor]:
        """Candidates of a batch and who may be given which.

        In ``stratified``, a share of the changed pairs may be given sentences that say that nothing changed and nothing
        else; the other pairs may be given only sentences that name a change.

        Args:
            size: candidates to draw.
            references: all captions of each of B pairs.
            generator: of this process.
            rank: of this process.
            processes: that train together.

        Returns:
            places ``(N,)`` and bool ``(B, N)``, True where a candidate may be a negative of a pair.

        Raises:
            DataError: a pair is left without any candidate, draw after draw.
        """
        for _ in range(REDRAWS):
            places = self.draw(size, generator, rank, processes)
            allowed = self.wrong(places, references, empty=True)
            if self.weighting == "stratified":
                allowed = self._stratified(places, allowed, references, generator)
            if bool(allowed.any(1).all()):
                return places, allowed
        return places, self.wrong(places, references)

    def _stratified(
        self, places: Tensor, allowed: Tensor, references: Sequence[Sequence[str]], generator: torch.Generator
    ) -> Tensor:
        drawn = torch.rand(len(references), generator=generator) < self.no_change_share
        stratum = (drawn & ~self.says_no_change(references))[:, None] == self.unchanged[places]
        kept = allowed & stratum
        # a stratum without a candidate, as in a split whose captions never say that nothing changed
        return torch.where(kept.any(1, keepdim=True), kept, allowed)

    def says_no_change(self, references: Sequence[Sequence[str]]) -> Tensor:
        """Which pairs have a reference that says that nothing changed: bool ``(B,)``."""
        places = [[self._places.get(same_words(caption), -1) for caption in captions] for captions in references]
        return torch.tensor([any(place >= 0 and bool(self.unchanged[place]) for place in own) for own in places])

    def places_of(self, captions: Iterable[str]) -> Tensor:
        """Places of captions of the pool, ``(N,)``."""
        return torch.tensor([self._places[same_words(caption)] for caption in captions])

    def wrong(self, candidates: Tensor, references: Sequence[Sequence[str]], empty: bool = False) -> Tensor:
        """Which candidates are not a pair's own references: bool ``(B, N)``.

        Args:
            candidates: places ``(N,)``.
            references: all captions of each of B pairs.
            empty: let a pair have no candidate.

        Raises:
            DataError: a pair is left without any candidate.
        """
        own = [[self._places.get(same_words(caption), -1) for caption in captions] for captions in references]
        allowed = torch.stack([~torch.isin(candidates, torch.tensor(places)) for places in own])
        if not empty and not bool(allowed.any(1).all()):
            raise DataError(
                f"all {len(candidates)} candidate captions are references of one pair; draw more candidates, or give "
                "the training split more different captions"
            )
        return allowed


def _drawn(places: Tensor, size: int, generator: torch.Generator, rank: int, processes: int) -> Tensor:
    """``size`` of the places without replacement, from this process's share where that is large enough."""
    share = places if len(places) < size * processes else places[rank::processes]
    return share[torch.randperm(len(share), generator=generator)[:size]]


def choose(
    logits: Tensor, allowed: Tensor, count: int, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Draw ``count`` candidates per pair, with replacement, from the softmax over those that are allowed.

    ADPO Eq. 3

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
