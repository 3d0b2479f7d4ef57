"""Data of METEOR's matchers: sentences as numbers, relations between words and between phrases, and matches."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_idc.metrics.corpus import Ints
from lightning_idc.metrics.meteor.paraphrases import Phrases

Masks = NDArray[np.uint64]
EXACT, STEM, SYNONYM, PARAPHRASE = range(4)
WEIGHTS = np.array([1.0, 0.6, 0.8, 0.6])
"""Weights of the four kinds of matches for English."""


class Relation(NamedTuple):
    """A relation between numbers.

    Args:
        key: left side times ``size`` plus right side, sorted, ``(R,)``.
        rank: index of each in the original order, ``(R,)``.
        bit: a bit for each number, ``(size,)``.
        bits: the bits of all numbers that a number is related to, ``(size,)``.
    """

    key: Ints
    rank: Ints
    bit: Masks
    bits: Masks


def relate(source: Ints, target: Ints, size: int) -> Relation:
    """The relation of numbers below ``size``; right sides of the same left side keep their order.

    Args:
        source: left sides, ``(R,)``.
        target: right sides, ``(R,)``.
        size: upper bound of the numbers.
    """
    key = source * size + target
    rank = np.argsort(key, kind="stable")
    bit: Masks = np.uint64(1) << (np.arange(size, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(58))
    bits: Masks = np.zeros(size, dtype=np.uint64)
    np.bitwise_or.at(bits, source, bit[target])
    return Relation(key[rank], rank, bit, bits)


def same_set(groups: Ints, members: Ints) -> tuple[Ints, Ints]:
    """Ordered pairs of different members that share a group, each once; by first member."""
    order = np.lexsort((members, groups))
    groups, members = groups[order], members[order]
    pairs: list[Ints] = [np.zeros((2, 0), dtype=np.int64)]
    for step in range(1, len(groups)):
        shares_group = np.flatnonzero(groups[step:] == groups[:-step])
        if not len(shares_group):
            break
        first_member, second_member = members[shares_group], members[shares_group + step]
        pairs += [np.stack([first_member, second_member]), np.stack([second_member, first_member])]
    joined = np.concatenate(pairs, axis=1)
    joined = joined[:, np.lexsort(joined[::-1])]
    is_first = np.concatenate([[True], (joined[:, 1:] != joined[:, :-1]).any(0)])[: joined.shape[1]]
    return joined[0, is_first], joined[1, is_first]


class Sentences(NamedTuple):
    """Sentences as rows of numbers.

    Args:
        words: numbers of the words of all sentences, ``(N,)``.
        start: first word of each sentence, ``(C + 1,)``.
        stem: number of each word's stem, ``(V,)``.
        synonyms: relation between words.
        function: whether a word is a function word, ``(V,)``.
        phrases: phrases that have paraphrases.
        paraphrases: relation between phrases.
    """

    words: Ints
    start: Ints
    stem: Ints
    synonyms: Relation
    function: NDArray[np.bool_]
    phrases: Phrases
    paraphrases: Relation

    @property
    def lengths(self) -> Ints:
        """Number of words of each sentence."""
        return np.diff(self.start)


class Matches(NamedTuple):
    """Matches of many pairs of sentences, ``(M,)`` each, by pair, position in the reference and preference.

    Args:
        pair: index of the pair.
        position: first word in the reference.
        size: number of words in the reference.
        candidate_position: first word in the candidate.
        candidate_size: number of words in the candidate.
        kind: EXACT, STEM, SYNONYM or PARAPHRASE.
    """

    pair: Ints
    position: Ints
    size: Ints
    candidate_position: Ints
    candidate_size: Ints
    kind: Ints
