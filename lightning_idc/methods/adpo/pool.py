"""CaptionPool: the captions of the training split, from which negatives are drawn (ADPO section 4.2).

1. :meth:`CaptionPool.sample_candidates` draws N candidates for a batch and excludes the references of each pair;
2. :func:`sample_negatives` draws K of them for each pair, uniformly (DPO) or by the retriever's logits (ADPO, Eq. 3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor

from lightning_idc.nn.vocabulary import words_of
from lightning_idc.synthesis.models.base import TextEncoder
from lightning_idc.utils.bounds import PositiveShare, Share, check_arguments
from lightning_idc.utils.errors import ConfigError, DataError

Weighting = Literal["frequency", "distinct", "stratified"]
NO_CHANGE_FRACTION = 0.3
"""Fraction of the changed pairs whose negatives say that nothing changed."""
SIMILARITY_THRESHOLD = 0.8
"""Cosine of sentence embeddings from which on a caption counts as a paraphrase (``docs/notes/adpo.md``)."""
MAX_DRAWS = 8
"""Maximum number of attempts to draw candidates for a batch until each pair has one."""


def normalize(caption: str) -> str:
    """Normalise a caption to lower case and single spaces, so that captions of the same words are equal."""
    return " ".join(words_of(caption))


class CaptionPool:
    """Distinct captions of a training split with their frequencies.

    The negatives of a pair are captions that are not among its references. With ``too_similar``, paraphrases of a
    reference, such as "brighten this photo" for "brighten this picture", are excluded, too.

    Args:
        captions: captions with duplicates; captions of the same words are one entry.
        weighting: how candidates are drawn. ``frequency``: in proportion to their frequency, with repeats, like the
            captions of random other pairs. ``distinct``: each entry at most once. ``stratified``: by frequency, with
            "nothing changed" as a separate stratum (see :meth:`sample_candidates`).
        no_change: sentences that say that nothing changed.
        no_change_fraction: in ``stratified``, fraction of the changed pairs whose negatives are such sentences; 0.3
            when None.
        too_similar: loaded encoder of sentences, which embeds every entry once; None to compare words only.
        threshold: cosine with a reference from which on a caption is too similar to be a negative; 0.8 when None.

    Raises:
        DataError: there are fewer than two distinct captions.
        ConfigError: the weighting is unknown, a number is out of range, or ``no_change_fraction`` or ``threshold`` is
            set where the other arguments leave it without effect.
    """

    def __init__(
        self,
        captions: Iterable[str],
        weighting: Weighting = "frequency",
        no_change: Iterable[str] = (),
        no_change_fraction: Share | None = None,
        too_similar: TextEncoder | None = None,
        threshold: PositiveShare | None = None,
    ) -> None:
        check_arguments(CaptionPool.__init__, locals())
        if no_change_fraction is not None and weighting != "stratified":
            raise ConfigError(
                f"no_change_fraction is {no_change_fraction:g} and weighting {weighting!r}; it needs 'stratified'"
            )
        if threshold is not None and too_similar is None:
            raise ConfigError(f"threshold is {threshold:g} and too_similar None; set too_similar to a TextEncoder")
        self.weighting, self.too_similar = weighting, too_similar
        self.no_change_fraction = NO_CHANGE_FRACTION if no_change_fraction is None else no_change_fraction
        self.threshold = SIMILARITY_THRESHOLD if threshold is None else threshold
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
        by_frequency = torch.tensor(occurrences)  # an index occurs as often as its caption
        self._population = torch.arange(len(self.texts)) if weighting == "distinct" else by_frequency
        self._change_population = by_frequency[~self.is_no_change[by_frequency]]
        if too_similar is not None:
            self._embeddings = too_similar.encode(self.texts)  # (M, D)

    def __len__(self) -> int:
        return len(self.texts)

    def draw(self, size: int, generator: torch.Generator, rank: int = 0, num_processes: int = 1) -> Tensor:
        """Draw the indices of ``size`` captions, or of all captions if there are fewer.

        Each process draws from its part of the pool, so that a step sees as many distinct captions as possible, or from
        the whole pool where a part would be smaller than ``size``.

        Args:
            size: number of captions to draw.
            generator: random numbers of this process.
            rank: rank of this process.
            num_processes: number of processes.
        """
        if self.weighting == "stratified" and len(self._change_population):
            changes = _draw_from(self._change_population, size, generator, rank=rank, num_processes=num_processes)
            return torch.cat([changes, self.is_no_change.nonzero()[:, 0]])
        return _draw_from(self._population, size, generator, rank=rank, num_processes=num_processes)

    def sample_candidates(
        self,
        size: int,
        references: Sequence[Sequence[str]],
        generator: torch.Generator,
        rank: int = 0,
        num_processes: int = 1,
    ) -> tuple[Tensor, Tensor]:
        """Draw candidates for a batch, and mark for each pair those that may be its negative.

        With ``stratified``, a fraction of the changed pairs may only get sentences that say that nothing changed, and
        all other pairs only sentences that name a change.

        Args:
            size: number of candidates to draw.
            references: all captions of each of B pairs.
            generator: random numbers of this process.
            rank: rank of this process.
            num_processes: number of processes.

        Returns:
            indices ``(N,)`` and bool ``(B, N)``, True where a candidate may be a negative of a pair.

        Raises:
            DataError: a pair has no candidate after ``MAX_DRAWS`` attempts.
        """
        for _ in range(MAX_DRAWS):
            indices = self.draw(size, generator, rank, num_processes)
            allowed = self.is_negative(indices, references, allow_none=True)
            if self.weighting == "stratified":
                allowed = self._restrict_to_stratum(indices, allowed, references, generator)
            if bool(allowed.any(1).all()):
                return indices, allowed
        return indices, self.is_negative(indices, references)

    def _restrict_to_stratum(
        self, indices: Tensor, allowed: Tensor, references: Sequence[Sequence[str]], generator: torch.Generator
    ) -> Tensor:
        """Restrict ``allowed (B, N)`` to "nothing changed" for some changed pairs, and to changes for all others."""
        is_selected = torch.rand(len(references), generator=generator) < self.no_change_fraction  # (B,)
        wants_no_change = is_selected & ~self.says_no_change(references)
        in_stratum = allowed & (wants_no_change[:, None] == self.is_no_change[indices])  # (B, N)
        # a stratum can be empty, as in a split whose captions never say that nothing changed
        return torch.where(in_stratum.any(1, keepdim=True), in_stratum, allowed)

    def says_no_change(self, references: Sequence[Sequence[str]]) -> Tensor:
        """Bool ``(B,)``, True for a pair with a reference that says that nothing changed."""
        rows = self._reference_indices(references)
        return torch.tensor([any(index >= 0 and bool(self.is_no_change[index]) for index in row) for row in rows])

    def _reference_indices(self, references: Sequence[Sequence[str]]) -> list[list[int]]:
        """Indices of the references of each pair; -1 for a caption outside of the pool."""
        return [[self._indices.get(normalize(caption), -1) for caption in captions] for captions in references]

    def indices_of(self, captions: Iterable[str]) -> Tensor:
        """Indices of captions of the pool, ``(N,)``."""
        return torch.tensor([self._indices[normalize(caption)] for caption in captions])

    def is_negative(self, candidates: Tensor, references: Sequence[Sequence[str]], allow_none: bool = False) -> Tensor:
        """Bool ``(B, N)``, True where a candidate is neither a reference of a pair nor too similar to one.

        Args:
            candidates: indices ``(N,)``.
            references: all captions of each of B pairs.
            allow_none: whether all candidates may be references of a pair.

        Raises:
            DataError: a pair has no candidate.
        """
        rows = self._reference_indices(references)
        other_words = torch.stack([~torch.isin(candidates, torch.tensor(row)) for row in rows])
        allowed = self._without_similar(other_words, lambda: self._embeddings[candidates], references)
        if not allow_none and not bool(allowed.any(1).all()):
            similar = "" if self.too_similar is None else f", or similar to one by {self.threshold:g} or more,"
            raise DataError(
                f"all {len(candidates)} candidate captions are references of one pair{similar}; draw more candidates, "
                "or add captions to the training split"
            )
        return allowed

    def is_negative_text(self, texts: Sequence[str], references: Sequence[str]) -> list[bool]:
        """Whether each caption, of the pool or not, may be a negative of one pair; captions without words may not.

        Args:
            texts: N captions.
            references: all captions of the pair.
        """
        correct = {"", *map(normalize, references)}
        other_words = torch.tensor([[normalize(text) not in correct for text in texts]], dtype=torch.bool)
        is_negative: list[bool] = self._without_similar(other_words, lambda: self.embed(texts), [references])[
            0
        ].tolist()
        return is_negative

    def _without_similar(
        self, other_words: Tensor, embed: Callable[[], Tensor], references: Sequence[Sequence[str]]
    ) -> Tensor:
        """Exclude captions that are too similar to a reference of their pair: bool ``(B, N)`` to bool ``(B, N)``.

        Args:
            other_words: bool ``(B, N)``, True at captions that differ from all references in their words.
            embed: function that returns the embeddings of the captions, ``(N, D)``.
            references: all captions of each of B pairs.
        """
        if self.too_similar is None or not other_words.any():
            return other_words
        lengths = [len(captions) for captions in references]
        # (N, R), with the references of all pairs in order
        cosines = embed() @ self.embed([caption for captions in references for caption in captions]).T
        maxima = [
            block.amax(1) if block.shape[1] else block.new_zeros(len(block)) for block in cosines.split(lengths, 1)
        ]
        is_negative = other_words & (torch.stack(maxima) < self.threshold)
        self._num_compared += int(other_words.sum())
        self._num_similar += int((other_words & ~is_negative).sum())
        return is_negative

    def read_similar_fraction(self) -> float:
        """Fraction of captions that were excluded as too similar since the last call."""
        fraction = self._num_similar / max(1, self._num_compared)
        self._num_compared, self._num_similar = 0, 0
        return fraction

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Unit vectors of captions, ``(N, D)``; those of entries are stored, others are encoded."""
        assert self.too_similar is not None
        indices = [self._indices.get(normalize(text), -1) for text in texts]
        unknown = [row for row, index in enumerate(indices) if index < 0]
        embeddings = self._embeddings[torch.tensor(indices)]
        if unknown:
            embeddings[unknown] = self.too_similar.encode([texts[row] for row in unknown])
        return embeddings


def _draw_from(indices: Tensor, size: int, generator: torch.Generator, rank: int, num_processes: int) -> Tensor:
    """Draw ``size`` indices without replacement, from this process's part of them if it is large enough."""
    local = indices if len(indices) < size * num_processes else indices[rank::num_processes]
    return local[torch.randperm(len(local), generator=generator)[:size]]


def sample_negatives(
    logits: Tensor, allowed: Tensor, count: int, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Draw K candidates per pair, with replacement, from q: the softmax of the logits of the allowed candidates.

    ADPO Eq. 3

    Args:
        logits: logits of q, similarity over temperature, ``(B, N)``.
        allowed: bool ``(B, N)``, False for a candidate that is a reference of the pair.
        count: K, number of candidates to draw per pair.
        generator: random generator, on the CPU; torch's global generator when None.

    Returns:
        drawn columns, ``(B, K)`` on the CPU, and the log-probabilities of all candidates, ``(B, N)``.
    """
    log_probs = logits.float().masked_fill(~allowed, float("-inf")).log_softmax(-1)
    # on the CPU: the texts are looked up there next, and the draws do not depend on the device
    probabilities = log_probs.detach().exp().cpu()
    return torch.multinomial(probabilities, count, replacement=True, generator=generator), log_probs
