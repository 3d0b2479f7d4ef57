"""The matches and the aligner of METEOR in plain Python: what ``matching.py`` and ``search.py`` compile.

A process that scores a few thousand captions is done before numba is loaded. The results are equal, so that the
choice between the two (:func:`~lightning_idc.metrics.meteor.scorer.align`) changes no score.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from lightning_idc.metrics.corpus import Ints
from lightning_idc.metrics.meteor.relations import EXACT, PARAPHRASE, STEM, SYNONYM, Relation, Sentences

BEAM = 40


class Match(NamedTuple):
    """A match, with the fields of :class:`~lightning_idc.metrics.meteor.relations.Matches` except ``pair``."""

    position: int
    size: int
    candidate_position: int
    candidate_size: int
    kind: int


Path = tuple[int, int, int, int, "tuple[int, object] | None"]
"""A path of the search, a plain tuple since there are many: its cost; the first position of the reference that it does
not cover; the word of the candidate behind its last match, -1 without one; the words of the candidate that it covers,
as bits; and the matches that it took, the last one first, as nested pairs."""


class Matcher:
    """Finds the matches of pairs of sentences, in the order in which METEOR prefers them.

    Args:
        sentences: the corpus.
    """

    def __init__(self, sentences: Sentences) -> None:
        self.words = [sentences.words[begin:end].tolist() for begin, end in pairwise(sentences.start.tolist())]
        self.stem: list[int] = sentences.stem.tolist()
        self.num_words = len(sentences.synonyms.bit)
        self.synonyms = _ranks(sentences.synonyms)
        self.has_synonyms: list[bool] = (sentences.synonyms.bits != 0).tolist()
        phrases = sentences.phrases
        occurrences = list(zip(phrases.position.tolist(), phrases.words.tolist(), phrases.phrase.tolist(), strict=True))
        self.phrases = [occurrences[begin:end] for begin, end in pairwise(phrases.start.tolist())]
        # rank of each paraphrase of a phrase, and of each phrase that it is a paraphrase of
        self.targets: dict[int, dict[int, int]] = {}
        self.sources: dict[int, dict[int, int]] = {}
        for key, rank in _ranks(sentences.paraphrases).items():
            source, target = divmod(key, len(sentences.paraphrases.bit))
            self.targets.setdefault(source, {})[target] = rank
            self.sources.setdefault(target, {})[source] = rank

    def matches(self, candidate: int, reference: int) -> list[Match]:
        """Matches of two sentences, by position in the reference and preference."""
        words, reference_words = self.words[candidate], self.words[reference]
        if words == reference_words:  # word by word
            return [Match(index, 1, index, 1, EXACT) for index in range(len(words))]
        stems = [self.stem[word] for word in words]
        starting: dict[int, list[tuple[int, int]]] = {}
        for position, size, phrase in self.phrases[reference]:
            starting.setdefault(position, []).append((size, phrase))
        matches: list[Match] = []
        for position, word in enumerate(reference_words):
            matches += self._of_word(position, word, words, stems)
            if position in starting:
                matches += self._of_phrases(position, starting[position], self.phrases[candidate])
        return matches

    def _of_word(self, position: int, word: int, words: Sequence[int], stems: Sequence[int]) -> list[Match]:
        matches = [Match(position, 1, index, 1, EXACT) for index, other in enumerate(words) if other == word]
        stem = self.stem[word]
        if stem in stems:
            indices = (index for index, other in enumerate(words) if stems[index] == stem and other != word)
            matches += [Match(position, 1, index, 1, STEM) for index in indices]
        if self.has_synonyms[word]:
            key = word * self.num_words
            matches += [
                Match(position, 1, index, 1, SYNONYM)
                for index, other in enumerate(words)
                if key + other in self.synonyms
            ]
        return matches

    def _of_phrases(
        self, position: int, phrases: Sequence[tuple[int, int]], others: Sequence[tuple[int, int, int]]
    ) -> list[Match]:
        forward, backward = [], []
        for column, (size, phrase) in enumerate(phrases):
            targets, sources = self.targets.get(phrase, {}), self.sources.get(phrase, {})
            for row, (start, length, other) in enumerate(others):
                # the order of the table precedes the order of words on the other side
                if other in targets:
                    forward.append(((column, targets[other], row), Match(position, size, start, length, PARAPHRASE)))
                if other in sources:
                    backward.append(((row, sources[other], column), Match(position, size, start, length, PARAPHRASE)))
        return [match for _, match in sorted(forward)] + [match for _, match in sorted(backward)]


def _ranks(relation: Relation) -> dict[int, int]:
    """Rank of every related pair, by its key."""
    return dict(zip(relation.key.tolist(), relation.rank.tolist(), strict=True))


def find_matches(sentences: Sentences, candidates: Ints, references: Ints) -> tuple[Ints, Ints]:
    """As :func:`lightning_idc.metrics.meteor.matching.find_matches`."""
    matcher = Matcher(sentences)
    rows = [matcher.matches(*pair) for pair in zip(candidates.tolist(), references.tolist(), strict=True)]
    start = np.cumsum([0, *map(len, rows)])
    fields = np.array([match for row in rows for match in row], dtype=np.int64).reshape(-1, len(Match._fields))
    return start, np.ascontiguousarray(fields.T)


def choose(start: Ints, matches: Ints, lengths: Ints) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """As :func:`lightning_idc.metrics.meteor.search.choose`."""
    rows = [Match(*row) for row in matches.T.tolist()]
    taken: list[bool] = []
    for (begin, end), (candidate_words, reference_words) in zip(
        pairwise(start.tolist()), lengths.tolist(), strict=True
    ):
        of_pair = rows[begin:end]
        contested = _contested(of_pair, candidate_words, reference_words)
        chosen = [not is_contested for is_contested in contested]
        if any(contested):
            choices = _search(of_pair, contested, reference_words)
            while choices is not None:
                index, choices = choices  # type: ignore[assignment]
                chosen[index] = True
        taken += chosen
    return np.array(taken, dtype=bool)


def _contested(matches: Sequence[Match], candidate_words: int, reference_words: int) -> list[bool]:
    """Whether each match shares a word with another one."""
    covered, candidate_covered = [0] * reference_words, [0] * candidate_words
    for position, size, candidate_position, candidate_size, _ in matches:
        for word in range(position, position + size):
            covered[word] += 1
        for word in range(candidate_position, candidate_position + candidate_size):
            candidate_covered[word] += 1
    return [
        max(covered[position : position + size]) > 1
        or max(candidate_covered[candidate_position : candidate_position + candidate_size]) > 1
        for position, size, candidate_position, candidate_size, _ in matches
    ]


def _events(matches: Sequence[Match], contested: Sequence[bool], words: int) -> tuple[list[list[int]], int]:
    """As ``_events`` of ``search.py``."""
    event, follows, ending = [False] * (words + 2), [-2] * (words + 2), [-1] * (words + 2)
    for match, is_contested in zip(matches, contested, strict=True):
        position, size, candidate_position, candidate_size, _ = match
        if is_contested:
            event[position : position + size] = [True] * size
        else:
            follows[position] = candidate_position
            ending[position + size] = candidate_position + candidate_size
    events: list[list[int]] = []
    for position in range(words + 2):
        closing = position > 0 and event[position - 1] and not event[position]
        if event[position] or closing:
            # behind a closing event all paths end with the same uncontested match
            if events and events[-1][2] == -2:
                events[-1][2] = ending[position]
            events.append([position, follows[position], -2 if closing else -1])
    return events, ending[events[0][0]]


def _search(matches: Sequence[Match], contested: Sequence[bool], reference_words: int) -> tuple[int, object] | None:
    """Contested matches that the best path takes, as nested pairs; see ``_search`` of ``search.py``."""
    events, last = _events(matches, contested, reference_words)
    distances = [abs(match.position - match.candidate_position) for match in matches]
    chunk = 1 + sum(distances)
    gains = []
    for match in matches:
        # matches other than exact ones count half, rounded down on either side: a single stem or synonym counts 0
        divisor = 1 if match.kind == EXACT else 2
        gains.append((match.size // divisor + match.candidate_size // divisor) * chunk * (len(events) + 2))
    masks = [(1 << match.candidate_size) - 1 << match.candidate_position for match in matches]
    paths: list[Path] = [(sum(gains), 0, last, 0, None)]
    end = 0
    for position, next_word, end_word in events:
        first = end
        while first < len(matches) and matches[first].position < position:
            first += 1
        end = first
        while end < len(matches) and matches[end].position == position and contested[end]:
            end += 1
        children: list[Path] = []
        for cost, free, last, used, choices in paths:
            if position < free:  # a path inside a match does not change
                children.append((cost, free, last, used, choices))
                continue
            for index in range(first, end):
                if used & masks[index]:
                    continue
                _, size, start, length, _ = matches[index]
                price = cost + (chunk if last not in (-1, start) else 0) - gains[index]
                taken = used | masks[index]
                children.append((price, position + size, start + length, taken, (index, choices)))
                # a path pays the distance of every match that it could have taken before the one it takes
                cost += distances[index]
            price = cost + (chunk if last not in (-1, next_word) else 0)
            children.append((price, free, end_word, used, choices))
        # stable: children of equal cost keep their order
        paths = sorted(children, key=itemgetter(0))[:BEAM]
    return paths[0][-1]
