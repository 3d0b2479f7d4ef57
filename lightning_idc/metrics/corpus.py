"""A corpus of candidates and references as arrays of n-grams, counted once for all metrics.

N-grams of the references are counted once for any number of candidates, since validation scores the same references
after every epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Tokens = Sequence[str]
MAX_ORDER = 4
# an n-gram is one number, the rank of its first n-1 words times _WORDS plus its last word; with a pair it is that pair
# times _GRAMS plus the rank of the n-gram
_WORDS, _GRAMS = 1 << 24, 1 << 36


@dataclass(frozen=True)
class Grams:
    """Distinct n-grams of every caption for one n, sorted by caption and n-gram.

    Args:
        caption: index of the caption, ``(E,)``.
        gram: rank of the n-gram among those of the references, ``(E,)``; n-grams of no reference rank last.
        count: number of occurrences in the caption, ``(E,)``.
        key: pair and n-gram in one number, ``(E,)``; sorted for candidates.
    """

    caption: Ints
    gram: Ints
    count: Ints
    key: Ints


@dataclass(frozen=True)
class ReferenceGrams(Grams):
    """N-grams of the references, and the values that depend on references alone.

    Args:
        table: all distinct n-grams as numbers, sorted, ``(G,)``.
        pair_key: distinct pairs and n-grams, sorted, ``(Q,)``.
        max_count: highest count of the n-gram in any one reference of the pair, ``(Q,)``.
        idf: inverse document frequency, the log of the number of pairs over that of pairs whose references have the
            n-gram, ``(G,)``.
        weight: count times ``idf``, ``(E,)``.
        norm: norm of each reference's weights, ``(R,)``.
    """

    table: Ints
    pair_key: Ints
    max_count: Ints
    idf: Floats
    weight: Floats
    norm: Floats


class ReferenceCounts:
    """Tokenised references of P pairs.

    Args:
        references: at least one token list per pair.
    """

    def __init__(self, references: Sequence[Sequence[Tokens]]) -> None:
        self.tokens = references
        self.pairs = len(references)
        self.per_pair: Ints = np.array([len(pair_references) for pair_references in references], dtype=np.int64)
        self.pair_index: Ints = np.repeat(np.arange(self.pairs), self.per_pair)
        self.words: dict[str, int] = {}
        self._ids, self.lengths = _number([tokens for group in references for tokens in group], self.words)

    @cached_property
    def grams(self) -> list[ReferenceGrams]:
        """N-grams for n = 1 to 4."""
        grams, ranks = [], np.zeros_like(self._ids)
        for n in range(1, MAX_ORDER + 1):
            caption, start = _starts(self.lengths, n)
            table, inverse = np.unique(_numbers(ranks, self._ids, start, n), return_inverse=True)
            ranks[start] = inverse
            occurrences = _count(caption, inverse, self.pair_index)
            order = np.argsort(occurrences.key, kind="stable")
            key = occurrences.key[order]
            first = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]])) if len(key) else np.zeros(0, np.int64)
            max_count = np.maximum.reduceat(occurrences.count[order], first) if len(key) else np.zeros(0, np.int64)
            documents = np.bincount(key[first] % _GRAMS, minlength=len(table))
            idf = np.log(float(max(self.pairs, 1))) - np.log(np.maximum(1.0, documents))
            weight = occurrences.count * idf[occurrences.gram]
            norm = np.sqrt(
                np.bincount(occurrences.caption, weights=weight**2, minlength=len(self.lengths)).astype(np.float64)
            )
            grams.append(
                ReferenceGrams(
                    caption=occurrences.caption,
                    gram=occurrences.gram,
                    count=occurrences.count,
                    key=occurrences.key,
                    table=table,
                    pair_key=key[first],
                    max_count=max_count,
                    idf=idf,
                    weight=weight,
                    norm=norm,
                )
            )
        return grams


class Corpus:
    """Tokenised candidates and references of P pairs.

    Args:
        candidates: one token list per pair.
        references: at least one token list per pair, or their counts.
    """

    def __init__(self, candidates: Sequence[Tokens], references: Sequence[Sequence[Tokens]] | ReferenceCounts) -> None:
        self.candidates = candidates
        self.references = references if isinstance(references, ReferenceCounts) else ReferenceCounts(references)
        self.pairs = len(candidates)
        self._ids, self.lengths = _number(candidates, dict(self.references.words))

    @cached_property
    def grams(self) -> list[Grams]:
        """N-grams of the candidates for n = 1 to 4."""
        grams, ranks = [], np.zeros_like(self._ids)
        for n, reference_grams in enumerate(self.references.grams, 1):
            caption, start = _starts(self.lengths, n)
            numbers = _numbers(ranks, self._ids, start, n)
            rank, is_known = find(reference_grams.table, numbers)
            rank[~is_known] = len(reference_grams.table) + np.unique(numbers[~is_known], return_inverse=True)[1]
            ranks[start] = rank
            grams.append(_count(caption, rank, np.arange(self.pairs)))
        return grams


def find(table: NDArray[Any], numbers: NDArray[Any]) -> tuple[Ints, NDArray[np.bool_]]:
    """Index of each number in a sorted table, and whether the table contains it."""
    if not len(table):
        return np.zeros(len(numbers), dtype=np.int64), np.zeros(len(numbers), dtype=bool)
    index = np.minimum(np.searchsorted(table, numbers), len(table) - 1)
    return index, table[index] == numbers


def pair_keys(pair: Ints, gram: Ints) -> Ints:
    """Pair and n-gram in one number each."""
    return pair * _GRAMS + gram


def _number(captions: Sequence[Tokens], words: dict[str, int]) -> tuple[Ints, Ints]:
    """Numbers of all words in one row, new words added, and the lengths of the captions."""
    numbers = [words.setdefault(word, len(words)) for tokens in captions for word in tokens]
    return np.array(numbers, dtype=np.int64), np.array([len(tokens) for tokens in captions], dtype=np.int64)


def _starts(lengths: Ints, n: int) -> tuple[Ints, Ints]:
    """Caption and position of every word that begins an n-gram."""
    caption = np.repeat(np.arange(len(lengths)), lengths)
    start = np.flatnonzero(np.cumsum(lengths)[caption] - np.arange(len(caption)) >= n)
    return caption[start], start


def _numbers(ranks: Ints, words: Ints, start: Ints, n: int) -> Ints:
    """The n-grams at these positions as numbers: the rank of the first n-1 words, and the last word."""
    return words[start] if n == 1 else ranks[start] * _WORDS + words[start + n - 1]


def _count(caption: Ints, gram: Ints, pair_index: Ints) -> Grams:
    keys, counts = np.unique(pair_keys(caption, gram), return_counts=True)
    caption, gram = keys // _GRAMS, keys % _GRAMS
    return Grams(caption, gram, counts.astype(np.int64), pair_keys(pair_index[caption], gram))
