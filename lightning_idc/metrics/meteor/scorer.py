"""Scorer: METEOR 1.5 (``-l en -norm``) without Java."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from zipfile import BadZipFile, ZipFile

import numpy as np

from lightning_idc.metrics.corpus import Floats, Ints, Tokens
from lightning_idc.metrics.meteor import paraphrase_index
from lightning_idc.metrics.meteor.normalizer import normalize_all
from lightning_idc.metrics.meteor.outcome import MeteorScores, NotComputed
from lightning_idc.metrics.meteor.relations import Matches, Relation, Sentences, relate, same_set
from lightning_idc.metrics.meteor.resources import pycocoevalcap_folder
from lightning_idc.metrics.meteor.statistics import additive_counts, count, from_statistics
from lightning_idc.metrics.meteor.wordnet import WordNet
from lightning_idc.utils.files import default_cache_dir

MAX_INTERPRETED = 5000
"""Pairs of a candidate and a reference that a process aligns in plain Python.

Loading the compiled functions takes 0.7 s of CPU, and many times more where they have never been compiled.
"""
_MAX_BLOCK_WORDS = 1 << 19
"""Maximum number of words per block; eight times as many would take a gigabyte."""
# endings of all suffixes that the stemmer changes; other words are their own stems
_HAS_SUFFIX = re.compile(r"^'|(?:[seyi']|ed|ing|al|ful|ll|er|ator|ion|ism|ic|[ae]nt)\Z")


def score(candidates: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> MeteorScores | NotComputed:
    """METEOR of the corpus and of every pair, or the reason why it is not available."""
    loaded = _load()
    if isinstance(loaded, NotComputed):
        return loaded
    statistics = additive_counts(loaded.statistics(candidates, references))
    return MeteorScores(float(from_statistics(statistics.sum(1))), from_statistics(statistics), statistics)


@cache
def _load() -> Scorer | NotComputed:
    folder = pycocoevalcap_folder()
    if folder is None:
        return NotComputed("pycocoevalcap, which contains METEOR's tables, is not installed")
    try:
        return Scorer(folder / "meteor", default_cache_dir() / "meteor")
    except (OSError, EOFError, ValueError, KeyError, BadZipFile, zlib.error) as error:
        return NotComputed(f"METEOR's tables in pycocoevalcap cannot be read ({error})")


@lru_cache(1 << 17)
def _stem(word: str) -> str:
    if not _HAS_SUFFIX.search(word):
        return word
    # imported late, since it loads the stemmers of all languages; the class itself, since snowballstemmer.stemmer() may
    # use PyStemmer, whose rules are later than those of METEOR's jar
    from snowballstemmer.english_stemmer import EnglishStemmer

    return str(EnglishStemmer().stemWord(word))


class Scorer:
    """METEOR with its tables.

    Args:
        folder: ``meteor`` in the installed pycocoevalcap.
        cache_folder: folder of the paraphrase index.

    Raises:
        OSError: a file cannot be read.
        ValueError: a file is damaged.
    """

    def __init__(self, folder: Path, cache_folder: Path) -> None:
        with ZipFile(folder / "meteor-1.5.jar") as jar:
            self._function_words = frozenset(jar.read("function/english.words").decode("utf-8").split())
            self._wordnet = WordNet(jar)
        self._paraphrases = paraphrase_index.load(folder / "data" / "paraphrase-en.gz", cache_folder)
        self._synsets = lru_cache(1 << 17)(self._wordnet.synsets)
        self._num_aligned = 0

    def statistics(self, candidates: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> Floats:
        """Counts of every pair against its reference with the best score, the first of equal ones, ``(23, P)``."""
        words = [
            sum(map(len, pair_references)) + len(tokens)
            for tokens, pair_references in zip(candidates, references, strict=True)
        ]
        block = np.cumsum(words) // _MAX_BLOCK_WORDS
        ends = [*(np.flatnonzero(np.diff(block)) + 1).tolist(), len(words)]
        parts = [
            self._best(candidates[begin:end], references[begin:end])
            for begin, end in zip([0, *ends[:-1]], ends, strict=True)
        ]
        return np.concatenate(parts, axis=1)

    def _best(self, candidates: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> Floats:
        per_pair = np.array([len(group) for group in references], dtype=np.int64)
        sentences = self._sentences([*candidates, *(tokens for group in references for tokens in group)])
        candidate = np.repeat(np.arange(len(per_pair)), per_pair)
        reference = len(per_pair) + np.arange(len(candidate))
        aligned = align(sentences, candidate, reference, compiled=self._is_worth_compiling(len(candidate)))
        counts = count(sentences, candidate, reference, aligned)
        scores = from_statistics(additive_counts(counts))
        order = np.lexsort((-scores, candidate))
        return counts[:, order[np.cumsum(per_pair) - per_pair]]

    def _is_worth_compiling(self, pairs: int) -> bool:
        """Whether loading the compiled functions pays for these and earlier pairs, where numba is installed."""
        self._num_aligned += pairs
        return self._num_aligned > MAX_INTERPRETED and find_spec("numba") is not None

    def _sentences(self, texts: Sequence[Tokens]) -> Sentences:
        # the program separates sentences by |||
        lines = normalize_all([line.replace("|||", "") if "|" in line else line for line in map(" ".join, texts)])
        # words may contain spaces of other scripts, so split only at the ASCII space
        row = " ".join(filter(None, lines)).split(" ") if any(lines) else []
        numbers = {word: number for number, word in enumerate(dict.fromkeys(row))}
        words = np.fromiter(map(numbers.__getitem__, row), dtype=np.int64, count=len(row))
        lengths = np.array([line.count(" ") + 1 if line else 0 for line in lines], dtype=np.int64)
        stems: dict[str, int] = {}
        stem_of = [stems.setdefault(_stem(word), len(stems)) for word in numbers]
        phrases = self._paraphrases.phrases(list(numbers), words, lengths)
        size = len(phrases.paraphrase_start) - 1
        source = np.repeat(np.arange(size), np.diff(phrases.paraphrase_start))
        return Sentences(
            words=words,
            start=np.concatenate([[0], np.cumsum(lengths)]),
            stem=np.array(stem_of, dtype=np.int64),
            synonyms=self._synonyms(list(numbers)),
            function=np.array([word in self._function_words for word in numbers], dtype=bool),
            phrases=phrases,
            paraphrases=relate(source, phrases.paraphrase, size),
        )

    def _synonyms(self, words: Sequence[str]) -> Relation:
        synsets = [self._synsets(word) for word in words]
        owner = np.repeat(np.arange(len(words)), [len(of_word) for of_word in synsets])
        group = np.array([number for of_word in synsets for number in of_word], dtype=np.int64)
        return relate(*same_set(group, owner), len(words))


def align(sentences: Sentences, candidates: Ints, references: Ints, compiled: bool) -> Matches:
    """Alignments of pairs of sentences: the chosen matches.

    Args:
        sentences: the corpus.
        candidates: sentence of each pair's candidate, ``(B,)``.
        references: sentence of each pair's reference, ``(B,)``.
        compiled: use the functions that numba compiles, which are faster once they are loaded.
    """
    if compiled:
        # imported late: numba takes longer to load than plain Python to align a few thousand pairs
        from lightning_idc.metrics.meteor.matching import find_matches
        from lightning_idc.metrics.meteor.search import choose
    else:
        from lightning_idc.metrics.meteor.interpreted import choose, find_matches

    start, matches = find_matches(sentences, candidates, references)
    lengths = np.stack([sentences.lengths[candidates], sentences.lengths[references]], 1)
    chosen = choose(start, matches, lengths)
    pair = np.repeat(np.arange(len(candidates)), np.diff(start))[chosen]
    return Matches(pair, *matches[:, chosen])
