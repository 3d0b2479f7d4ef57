"""Matches of METEOR: words and phrases of a candidate that may go with words and phrases of a reference.

Many pairs of sentences are compared at once, as arrays that are padded to the longest. A relation between numbered
words or phrases is first asked for by one bit in 64, which most pairs fail, and then exactly.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_idc.metrics.corpus import Ints, find
from lightning_idc.metrics.meteor.paraphrases import Phrases

Masks = NDArray[np.uint64]
EXACT, STEM, SYNONYM, PARAPHRASE = range(4)
WEIGHTS = np.array([1.0, 0.6, 0.8, 0.6])
"""Of the four kinds, for English."""


class Relation:
    """A relation between numbers below ``size``.

    Args:
        source: left sides, ``(R,)``.
        target: right sides, ``(R,)``; the order of those of one left side is kept.
        size: how many numbers there are.

    Attributes:
        bit: a bit for each number, ``(size + 2,)``.
        bits: the bits of all numbers that a number is related to, ``(size + 2,)``.
    """

    def __init__(self, source: Ints, target: Ints, size: int) -> None:
        self._size = max(size, 1)
        key = source * self._size + target
        self._rank = np.argsort(key, kind="stable")
        self._key = key[self._rank]
        # one bit in 64 for each number; the two last ones stand for padding, which is related to nothing
        mixed = np.arange(size + 2, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        self.bit: Masks = np.uint64(1) << (mixed >> np.uint64(58))
        self.bit[size:] = 0
        self.bits: Masks = np.zeros(size + 2, dtype=np.uint64)
        np.bitwise_or.at(self.bits, source, self.bit[target])

    def among(self, source: NDArray[np.int32], target: NDArray[np.int32]) -> tuple[NDArray[np.bool_], Ints]:
        """Whether pairs are in the relation, and their ranks in it."""
        place, there = find(self._key, source.astype(np.int64) * self._size + target)
        return there, self._rank[place] if len(self._rank) else place


class Sentences(NamedTuple):
    """Sentences as rows of numbers.

    Args:
        words: numbers of the words of all sentences, ``(N,)``.
        start: first word of each sentence, ``(C + 1,)``.
        stem: number of each word's stem, and -1 and -2 for padding, ``(V + 2,)``.
        synonyms: relation between words.
        function: whether a word is a function word, ``(V,)``.
        phrases: phrases that have paraphrases.
        paraphrases: relation between phrases.
    """

    words: Ints
    start: Ints
    stem: NDArray[np.int32]
    synonyms: Relation
    function: NDArray[np.bool_]
    phrases: Phrases
    paraphrases: Relation

    @property
    def lengths(self) -> Ints:
        """Number of words of each sentence."""
        return np.diff(self.start)


class Matches(NamedTuple):
    """Matches of many pairs of sentences, ``(M,)`` each, by pair, place in the reference and preference.

    Args:
        pair: number of the pair.
        place: first word in the reference.
        size: number of words there.
        other: first word in the candidate.
        other_size: number of words there.
        kind: EXACT, STEM, SYNONYM or PARAPHRASE.
    """

    pair: Ints
    place: Ints
    size: Ints
    other: Ints
    other_size: Ints
    kind: Ints

    def take(self, kept: NDArray[np.bool_] | Ints) -> Matches:
        """Some of the matches."""
        return Matches(*(field[kept] for field in self))


def find_matches(sentences: Sentences, candidates: Ints, references: Ints) -> Matches:
    """All matches of pairs of sentences.

    Args:
        sentences: the corpus.
        candidates: number of each pair's candidate, ``(B,)``.
        references: number of each pair's reference, ``(B,)``.
    """
    found = [*_words(sentences, candidates, references), *_phrases(sentences, candidates, references)]
    joined = [np.concatenate(fields) for fields in zip(*found, strict=True)]
    matches = Matches(*joined)
    most = int(matches.place.max(initial=0)) + 1
    return matches.take(np.argsort(matches.pair * most + matches.place, kind="stable"))


def _padded(values: Ints, start: Ints, rows: Ints, padding: int) -> NDArray[np.int32]:
    """Rows of different lengths as a matrix, ``(B, L)``."""
    lengths = start[rows + 1] - start[rows]
    column = np.arange(max(int(lengths.max(initial=0)), 1))
    there = column < lengths[:, None]
    matrix = np.full(there.shape, padding, dtype=np.int32)
    matrix[there] = values[(start[rows][:, None] + column)[there]]
    return matrix


def _hits(hit: NDArray[np.bool_]) -> tuple[Ints, Ints, Ints]:
    """Pair, column of the reference and column of the candidate of every True, in this order."""
    flat = np.flatnonzero(hit)
    row, other = np.divmod(flat, hit.shape[2])
    pair, place = np.divmod(row, hit.shape[1])
    return pair, place, other


def _words(sentences: Sentences, candidates: Ints, references: Ints) -> list[Matches]:
    words = len(sentences.function)
    # the two kinds of padding differ, so that padding goes with nothing
    theirs = _padded(sentences.words, sentences.start, candidates, words)
    ours = _padded(sentences.words, sentences.start, references, words + 1)
    pair, place, other = _hits(sentences.stem[ours][:, :, None] == sentences.stem[theirs][:, None, :])
    exact = ours[pair, place] == theirs[pair, other]
    relation = sentences.synonyms
    maybe = _hits((relation.bits[ours][:, :, None] & relation.bit[theirs][:, None, :]).astype(bool))
    related, _ = relation.among(ours[maybe[0], maybe[1]], theirs[maybe[0], maybe[2]])
    return [
        _of_words(EXACT, pair[exact], place[exact], other[exact]),
        _of_words(STEM, pair[~exact], place[~exact], other[~exact]),
        _of_words(SYNONYM, *(side[related] for side in maybe)),
    ]


def _of_words(kind: int, pair: Ints, place: Ints, other: Ints) -> Matches:
    one = np.ones_like(pair)
    return Matches(pair, place, one, other, one, kind * one)


def _phrases(sentences: Sentences, candidates: Ints, references: Ints) -> list[Matches]:
    """Paraphrases from reference to candidate, then those from candidate to reference."""
    phrases, relation = sentences.phrases, sentences.paraphrases
    unknown = len(phrases.paraphrase_start) - 1
    theirs = _padded(phrases.phrase, phrases.start, candidates, unknown)
    ours = _padded(phrases.phrase, phrases.start, references, unknown)
    found = []
    for forward in (True, False):
        if forward:
            maybe = relation.bits[ours][:, :, None] & relation.bit[theirs][:, None, :]
        else:
            maybe = relation.bit[ours][:, :, None] & relation.bits[theirs][:, None, :]
        pair, column, other = _hits(maybe.astype(bool))
        ends = ours[pair, column], theirs[pair, other]
        there, rank = relation.among(*(ends if forward else ends[::-1]))
        pair, column, other, rank = pair[there], column[there], other[there], rank[there]
        # the table's order counts before the order of the words that its paraphrases are found in
        order = np.lexsort((other, rank, column, pair) if forward else (column, rank, other, pair))
        pair, column, other = pair[order], column[order], other[order]
        at, other_at = phrases.start[references[pair]] + column, phrases.start[candidates[pair]] + other
        found.append(
            Matches(
                pair,
                phrases.position[at],
                phrases.words[at],
                phrases.position[other_at],
                phrases.words[other_at],
                np.full_like(pair, PARAPHRASE),
            )
        )
    return found


def same_set(groups: Ints, members: Ints) -> tuple[Ints, Ints]:
    """Ordered pairs of different members that share a group, each once; by first member."""
    order = np.lexsort((members, groups))
    groups, members = groups[order], members[order]
    pairs: list[Ints] = [np.zeros((2, 0), dtype=np.int64)]
    for step in range(1, len(groups)):
        together = np.flatnonzero(groups[step:] == groups[:-step])
        if not len(together):
            break
        one, two = members[together], members[together + step]
        pairs += [np.stack([one, two]), np.stack([two, one])]
    joined = np.concatenate(pairs, axis=1)
    joined = joined[:, np.lexsort(joined[::-1])]
    first = np.concatenate([[True], (joined[:, 1:] != joined[:, :-1]).any(0)])[: joined.shape[1]]
    return joined[0, first], joined[1, first]
