"""METEOR 1.5 (``-l en -norm``) without Java."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple
from zipfile import ZipFile

import numpy as np

from lightning_idc.metrics.corpus import Floats, Ints, Tokens
from lightning_idc.metrics.meteor import paraphrases
from lightning_idc.metrics.meteor.matching import EXACT, Matches, Relation, Sentences, find_matches, same_set
from lightning_idc.metrics.meteor.normalizer import normalize
from lightning_idc.metrics.meteor.search import choose
from lightning_idc.metrics.meteor.statistics import count, from_statistics, unbroken_as_none
from lightning_idc.metrics.meteor.stemmer import stem
from lightning_idc.metrics.meteor.wordnet import WordNet

_COMPARISONS = 1 << 19
"""Words of candidates times words of references that are compared at once."""


class Scorer:
    """METEOR with its tables.

    Args:
        folder: ``meteor`` in the installed pycocoevalcap.
        cache_folder: where the index of paraphrases is kept.

    Raises:
        OSError: a file cannot be read.
        ValueError: a file is damaged.
    """

    def __init__(self, folder: Path, cache_folder: Path) -> None:
        with ZipFile(folder / "meteor-1.5.jar") as jar:
            self._function_words = frozenset(jar.read("function/english.words").decode("utf-8").split())
            self._wordnet = WordNet(jar)
        self._paraphrases = paraphrases.load(folder / "data" / "paraphrase-en.gz", cache_folder)
        self._synsets = lru_cache(1 << 17)(self._wordnet.synsets)

    def statistics(self, candidates: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> Floats:
        """Counts of every pair against the reference with the best score, the first of equals, ``(23, P)``."""
        per_pair = np.array([len(of_pair) for of_pair in references], dtype=np.int64)
        sentences = self._sentences([*candidates, *(tokens for of_pair in references for tokens in of_pair)])
        candidate = np.repeat(np.arange(len(per_pair)), per_pair)
        counts = _align(sentences, candidate, len(per_pair) + np.arange(len(candidate)))
        scores = from_statistics(unbroken_as_none(counts))
        order = np.lexsort((-scores, candidate))
        return counts[:, order[np.cumsum(per_pair) - per_pair]]

    def _sentences(self, texts: Sequence[Tokens]) -> Sentences:
        rows = [normalize(" ".join(tokens).replace("|||", "")) for tokens in texts]
        numbers: dict[str, int] = {}
        words = np.array([numbers.setdefault(word, len(numbers)) for row in rows for word in row], dtype=np.int64)
        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        stems: dict[str, int] = {}
        stem_of = [stems.setdefault(stem(word), len(stems)) for word in numbers]
        phrases = self._paraphrases.phrases(list(numbers), words, lengths)
        size = len(phrases.paraphrase_start) - 1
        source = np.repeat(np.arange(size), np.diff(phrases.paraphrase_start))
        return Sentences(
            words,
            np.concatenate([[0], np.cumsum(lengths)]),
            np.array([*stem_of, -1]),
            self._synonyms(list(numbers)),
            np.array([word in self._function_words for word in numbers], dtype=bool),
            phrases,
            Relation(source, phrases.paraphrase, size),
        )

    def _synonyms(self, words: Sequence[str]) -> Relation:
        synsets = [self._synsets(word) for word in words]
        owner = np.repeat(np.arange(len(words)), [len(of_word) for of_word in synsets])
        group = np.array([number for of_word in synsets for number in of_word], dtype=np.int64)
        return Relation(*same_set(group, owner), len(words))


def _align(sentences: Sentences, candidates: Ints, references: Ints) -> Floats:
    """Counts of the alignments of pairs of sentences, ``(23, B)``."""
    lengths = sentences.lengths
    counts = np.zeros((23, len(candidates)))
    # pairs of like lengths are compared together, so that few words are padding
    area = (lengths[candidates] + 1) * (lengths[references] + 1)
    order = np.argsort(area, kind="stable")
    parts = np.searchsorted(np.cumsum(area[order]), np.arange(0, area.sum(), _COMPARISONS)[1:])
    for rows in np.split(order, np.unique(parts)):
        if len(rows):
            counts[:, rows] = _align_some(sentences, candidates[rows], references[rows])
    return counts


def _align_some(sentences: Sentences, candidates: Ints, references: Ints) -> Floats:
    lengths = sentences.lengths
    matches = find_matches(sentences, candidates, references)
    chosen = choose(matches, lengths[candidates], lengths[references])
    # a sentence goes with itself word by word
    same = _equal(sentences, candidates, references)
    chosen = np.where(same[matches.pair], (matches.kind == EXACT) & (matches.place == matches.other), chosen)
    return count(sentences, candidates, references, matches.take(chosen))


def _equal(sentences: Sentences, candidates: Ints, references: Ints) -> np.ndarray:
    lengths = sentences.lengths
    same = lengths[candidates] == lengths[references]
    size = np.where(same, lengths[candidates], 0)
    pair = np.repeat(np.arange(len(size)), size)
    offset = np.arange(len(pair)) - np.repeat(np.cumsum(size) - size, size)
    differs = (
        sentences.words[sentences.start[candidates][pair] + offset]
        != sentences.words[sentences.start[references][pair] + offset]
    )
    same[pair[differs]] = False
    return same
