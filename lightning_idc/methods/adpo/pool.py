"""A pool of captions from which wrong ones are drawn for a pair."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor

from lightning_idc.nn.vocabulary import words_of
from lightning_idc.synthesis.models.base import TextEncoder
from lightning_idc.utils.bounds import PositiveShare, Share, check_arguments
from lightning_idc.utils.errors import DataError

Weighting = Literal["frequency", "distinct", "stratified"]
NO_CHANGE_FRACTION = 0.3
"""Fraction of the changed pairs whose negatives say that nothing changed."""
SIMILARITY_THRESHOLD = 0.8
"""Cosine of sentence embeddings from which on a caption counts as a paraphrase (``docs/notes/adpo.md``)."""
MAX_DRAWS = 8
"""Draws of candidates before a pair without any candidate is an error."""


def normalize(caption: str) -> str:
    """Caption in a form that is equal for two captions of the same words: lower case, single spaces."""
    return " ".join(words_of(caption))


class CaptionPool:
    """Distinct captions of a training split with their frequencies.

    A caption is wrong for a pair if it is not one of its references. The same change can be said in other words, as
    "brighten this photo" for "brighten this picture"; with ``too_similar`` such a caption is no negative either.

    Args:
        captions: captions with duplicates; captions of the same words are one entry.
        weighting: how candidates are drawn. ``frequency``: in proportion to their frequency, with repeats, as captions
            of random other pairs are. ``distinct``: each entry once. ``stratified``: by frequency, with "nothing
            changed" as a separate stratum (see :meth:`offer`).
        no_change: sentences that say that nothing changed.
        no_change_fraction: in ``stratified``, fraction of the changed pairs whose negatives are such sentences.
        too_similar: loaded encoder of sentences, which embeds every entry once; None to compare words only.
        threshold: cosine with a reference from which on a caption is too similar to be a negative.

    Raises:
        DataError: there are fewer than two distinct captions.
        ConfigError: the weighting is unknown or a number is out of range.
    """

    def __init__(
        self,
        captions: Iterable[str],
        weighting: Weighting = "frequency",
        no_change: Iterable[str] = (),
        no_change_fraction: Share = 0.0,
        too_similar: TextEncoder | None = None,
        threshold: PositiveShare = SIMILARITY_THRESHOLD,
    ) -> None:
        check_arguments(CaptionPool.__init__, locals())
        self.weighting, self.no_change_fraction = weighting, no_change_fraction
        self.too_similar, self.threshold = too_similar, threshold
        # captions with other words than the references, and those of them that were too similar, since they were read
        self._num_compared, self._num_similar = 0, 0
        self.texts: list[str] = []
        self._indices: dict[str, int] = {}
        occurrences: list[int] = []  # index of every caption, duplicates included
        for caption in captions:
            index = self._indices.setdefault(normalize(caption), len(self.texts))
            if index == len(self.texts):
                self.texts.append(caption)
            occurrences.append(index)
        if len(self.texts) < 2:
            raise DataError(
                f"the training split has {len(self.texts)} distinct captions; negatives need at least two to draw from"
            )
        no_change_texts = {normalize(caption) for caption in no_change}
        self.is_no_change = torch.tensor([normalize(text) in no_change_texts for text in self.texts])
        every = torch.tensor(occurrences)
        self._drawable = torch.arange(len(self.texts)) if weighting == "distinct" else every
        self._changes = every[~self.is_no_change[every]]
        if too_similar is not None:
            self._embeddings = too_similar.encode(self.texts)  # (M, D)

    def __len__(self) -> int:
        return len(self.texts)

    def draw(self, size: int, generator: torch.Generator, rank: int = 0, num_processes: int = 1) -> Tensor:
        """Indices of ``size`` captions, or of all where there are fewer.

        Each process draws from its part of the pool, so that a step sees as many distinct captions as possible, or from
        the whole pool where a part would be smaller than ``size``.

        Args:
            size: number of captions to draw.
            generator: random numbers of this process.
            rank: rank of this process.
            num_processes: number of processes.
        """
        if self.weighting == "stratified" and len(self._changes):
            no_change = self.is_no_change.nonzero()[:, 0]
            return torch.cat(
                [_draw_from(self._changes, size, generator, rank=rank, num_processes=num_processes), no_change]
            )
        return _draw_from(self._drawable, size, generator, rank=rank, num_processes=num_processes)

    def offer(
        self,
        size: int,
        references: Sequence[Sequence[str]],
        generator: torch.Generator,
        rank: int = 0,
        num_processes: int = 1,
    ) -> tuple[Tensor, Tensor]:
        """Candidates of a batch, and which of them may be a negative of which pair.

        In ``stratified``, a fraction of the changed pairs may only get sentences that say that nothing changed; all
        other pairs may only get sentences that name a change.

        Args:
            size: number of candidates to draw.
            references: all captions of each of B pairs.
            generator: random numbers of this process.
            rank: rank of this process.
            num_processes: number of processes.

        Returns:
            indices ``(N,)`` and bool ``(B, N)``, True where a candidate may be a negative of a pair.

        Raises:
            DataError: a pair has no candidate after several draws.
        """
        for _ in range(MAX_DRAWS):
            indices = self.draw(size, generator, rank, num_processes)
            allowed = self.is_wrong(indices, references, allow_none=True)
            if self.weighting == "stratified":
                allowed = self._stratified(indices, allowed, references, generator)
            if bool(allowed.any(1).all()):
                return indices, allowed
        return indices, self.is_wrong(indices, references)

    def _stratified(
        self, indices: Tensor, allowed: Tensor, references: Sequence[Sequence[str]], generator: torch.Generator
    ) -> Tensor:
        selected = torch.rand(len(references), generator=generator) < self.no_change_fraction
        stratum = (selected & ~self.says_no_change(references))[:, None] == self.is_no_change[indices]  # (B, N)
        in_stratum = allowed & stratum
        # a stratum can be empty, as in a split whose captions never say that nothing changed
        return torch.where(in_stratum.any(1, keepdim=True), in_stratum, allowed)

    def says_no_change(self, references: Sequence[Sequence[str]]) -> Tensor:
        """Which pairs have a reference that says that nothing changed: bool ``(B,)``."""
        rows = self._reference_indices(references)
        return torch.tensor([any(index >= 0 and bool(self.is_no_change[index]) for index in row) for row in rows])

    def _reference_indices(self, references: Sequence[Sequence[str]]) -> list[list[int]]:
        """Indices of the references of each pair; -1 for a caption outside of the pool."""
        return [[self._indices.get(normalize(caption), -1) for caption in captions] for captions in references]

    def indices_of(self, captions: Iterable[str]) -> Tensor:
        """Indices of captions of the pool, ``(N,)``."""
        return torch.tensor([self._indices[normalize(caption)] for caption in captions])

    def is_wrong(self, candidates: Tensor, references: Sequence[Sequence[str]], allow_none: bool = False) -> Tensor:
        """Which candidates are not references of a pair, nor too similar to one: bool ``(B, N)``.

        Args:
            candidates: indices ``(N,)``.
            references: all captions of each of B pairs.
            allow_none: whether a pair may have no candidate.

        Raises:
            DataError: a pair has no candidate.
        """
        rows = self._reference_indices(references)
        other_words = torch.stack([~torch.isin(candidates, torch.tensor(row)) for row in rows])
        allowed = self._unlike(other_words, lambda: self._embeddings[candidates], references)
        if not allow_none and not bool(allowed.any(1).all()):
            similar = "" if self.too_similar is None else f", or similar to one by {self.threshold:g} or more,"
            raise DataError(
                f"all {len(candidates)} candidate captions are references of one pair{similar}; draw more candidates, "
                "or give the training split more different captions"
            )
        return allowed

    def is_wrong_text(self, texts: Sequence[str], references: Sequence[str]) -> list[bool]:
        """Which captions, of the pool or not, are wrong for one pair; a caption without a word is not.

        Args:
            texts: N captions.
            references: all captions of the pair.
        """
        correct = {"", *map(normalize, references)}
        other_words = torch.tensor([[normalize(text) not in correct for text in texts]], dtype=torch.bool)
        wrong: list[bool] = self._unlike(other_words, lambda: self.embed(texts), [references])[0].tolist()
        return wrong

    def _unlike(self, other_words: Tensor, embed: Callable[[], Tensor], references: Sequence[Sequence[str]]) -> Tensor:
        """``other_words``, bool ``(B, N)``, without the captions that are too similar to a reference of their pair.

        Args:
            other_words: which captions have other words than all references.
            embed: function that gives the embeddings of the captions, ``(N, D)``.
            references: all captions of each of B pairs.
        """
        if self.too_similar is None or not other_words.any():
            return other_words
        lengths = [len(captions) for captions in references]
        # (N, R), the references of all pairs one after the other
        cosines = embed() @ self.embed([caption for captions in references for caption in captions]).T
        nearest = [part.amax(1) if part.shape[1] else part.new_zeros(len(part)) for part in cosines.split(lengths, 1)]
        unlike = other_words & (torch.stack(nearest) < self.threshold)
        self._num_compared += int(other_words.sum())
        self._num_similar += int((other_words & ~unlike).sum())
        return unlike

    def read_similar_fraction(self) -> float:
        """Fraction of the captions with other words that were too similar, since the last call of this method."""
        fraction = self._num_similar / max(1, self._num_compared)
        self._num_compared, self._num_similar = 0, 0
        return fraction

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Unit vectors of captions, ``(N, D)``: of entries as stored, of others encoded now."""
        assert self.too_similar is not None
        indices = [self._indices.get(normalize(text), -1) for text in texts]
        unknown = [number for number, index in enumerate(indices) if index < 0]
        embeddings = self._embeddings[torch.tensor(indices)]
        if unknown:
            embeddings[unknown] = self.too_similar.encode([texts[number] for number in unknown])
        return embeddings


def _draw_from(indices: Tensor, size: int, generator: torch.Generator, rank: int, num_processes: int) -> Tensor:
    """``size`` of the indices without replacement, from this process's part of them where that is large enough."""
    local = indices if len(indices) < size * num_processes else indices[rank::num_processes]
    return local[torch.randperm(len(local), generator=generator)[:size]]


def choose(
    logits: Tensor, allowed: Tensor, count: int, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """RejectedCaptions ``count`` candidates per pair, with replacement, from the softmax over those that are allowed.

    ADPO Eq. 3

    Args:
        logits: ``(B, N)``.
        allowed: bool ``(B, N)``.
        count: K, candidates drawn per pair.
        generator: random numbers, on the CPU; torch's global generator when None.

    Returns:
        columns drawn, ``(B, K)`` on the CPU, and the log-probabilities of all candidates, ``(B, N)``.
    """
    log_probs = logits.float().masked_fill(~allowed, float("-inf")).log_softmax(-1)
    # on the CPU, where the texts are needed next and draws do not depend on the device
    probabilities = log_probs.detach().exp().cpu()
    return torch.multinomial(probabilities, count, replacement=True, generator=generator), log_probs
