"""A corpus of candidates and references as arrays of n-grams, counted once for all metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Tokens = Sequence[str]
MOST_WORDS = 4


@dataclass(frozen=True)
class Grams:
    """Distinct n-grams of every caption for one n, sorted by caption.

    Args:
        caption: number of the caption, ``(E,)``; candidates come first, then references.
        gram: id of the n-gram, ``(E,)``.
        count: how often the caption has it, ``(E,)``.
        total: number of distinct n-grams in the corpus.
    """

    caption: Ints
    gram: Ints
    count: Ints
    total: int


class Corpus:
    """Tokenised candidates and references of P pairs.

    Args:
        candidates: one token list per pair.
        references: at least one token list per pair.
    """

    def __init__(self, candidates: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> None:
        self.candidates, self.references = candidates, references
        self.pairs = len(candidates)
        self.reference_counts: Ints = np.array([len(of_pair) for of_pair in references], dtype=np.int64)
        captions = [*candidates, *(tokens for of_pair in references for tokens in of_pair)]
        self.lengths: Ints = np.array([len(tokens) for tokens in captions], dtype=np.int64)
        ids: dict[str, int] = {}
        self._words: Ints = np.array(
            [ids.setdefault(word, len(ids)) for tokens in captions for word in tokens], dtype=np.int64
        )
        self._vocabulary = max(len(ids), 1)
        # pair of each caption, candidates first
        self.owner: Ints = np.concatenate(
            [np.arange(self.pairs), np.repeat(np.arange(self.pairs), self.reference_counts)]
        )

    @cached_property
    def grams(self) -> list[Grams]:
        """N-grams for n = 1 to 4."""
        caption = np.repeat(np.arange(len(self.lengths)), self.lengths)
        position = np.arange(len(self._words)) - np.repeat(np.cumsum(self.lengths) - self.lengths, self.lengths)
        left = self.lengths[caption] - position  # words from here to the end of the caption
        ids, found = self._words, []
        for n in range(1, MOST_WORDS + 1):
            keep = left >= n
            if n > 1:
                longer = np.zeros_like(ids)
                count = max(len(ids) - n + 1, 0)
                longer[:count] = ids[:count] * self._vocabulary + self._words[n - 1 :][:count]
                distinct, inverse = np.unique(longer[keep], return_inverse=True)
                ids = np.zeros_like(ids)
                ids[keep] = inverse
                total = max(len(distinct), 1)
            else:
                total = self._vocabulary
            keys, counts = np.unique(caption[keep] * total + ids[keep], return_counts=True)
            found.append(Grams(keys // total, keys % total, counts.astype(np.int64), total))
        return found
