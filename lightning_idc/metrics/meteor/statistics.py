"""What METEOR counts of alignments, and its score of counts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lightning_idc.metrics.corpus import Floats, Ints
from lightning_idc.metrics.meteor.relations import WEIGHTS, Matches, Sentences

COUNTS = 23
# the program's parameters for English
_ALPHA, _BETA, _GAMMA, _DELTA = 0.85, 0.2, 0.6, 0.75


def count(sentences: Sentences, candidates: Ints, references: Ints, aligned: Matches) -> Floats:
    """Counts of alignments, ``(23, B)``: as the program gives them, see :class:`MeteorScores`.

    Args:
        sentences: the corpus.
        candidates: number of each pair's candidate, ``(B,)``.
        references: number of each pair's reference, ``(B,)``.
        aligned: matches of the alignments, by pair and place.
    """
    pairs = len(candidates)
    found = np.zeros((COUNTS, pairs))
    before = np.concatenate([[0], np.cumsum(sentences.function[sentences.words])])
    for side, (rows, first, size) in enumerate(
        ((candidates, aligned.other, aligned.other_size), (references, aligned.place, aligned.size))
    ):
        start = sentences.start[rows]
        found[side] = sentences.start[rows + 1] - start
        found[2 + side] = before[sentences.start[rows + 1]] - before[start]
        at = start[aligned.pair] + first
        function = before[at + size] - before[at]
        for kind in range(4):
            here = aligned.kind == kind
            pair = aligned.pair[here]
            found[4 + 4 * kind + side] = np.bincount(pair, (size - function)[here], pairs)
            found[6 + 4 * kind + side] = np.bincount(pair, function[here], pairs)
        found[21 + side] = np.bincount(aligned.pair, size, pairs)
    found[20] = np.bincount(aligned.pair[_begins_chunk(aligned)], minlength=pairs)
    return found


def _begins_chunk(aligned: Matches) -> NDArray[np.bool_]:
    """Whether a match does not go on where the match before it ends."""
    begins = np.ones(len(aligned.pair), dtype=bool)
    begins[1:] = (
        (aligned.pair[1:] != aligned.pair[:-1])
        | (aligned.place[1:] != (aligned.place + aligned.size)[:-1])
        | (aligned.other[1:] != (aligned.other + aligned.other_size)[:-1])
    )
    return begins


def unbroken_as_none(counts: Floats) -> Floats:
    """Counts ``(23, ...)`` that may be added up: of a candidate that matches from end to end no chunk counts."""
    length, reference_length, chunks, matched, reference_matched = counts[0], counts[1], *counts[20:]
    found = counts.copy()
    found[20] = np.where((chunks == 1) & (matched == length) & (reference_matched == reference_length), 0, chunks)
    return found


def from_statistics(statistics: Floats) -> Floats:
    """METEOR from summed counts (Denkowski and Lavie 2014, section 2), equal to the program's own to the last digits.

    Args:
        statistics: sums of what :class:`MeteorScores` holds per pair, ``(23, ...)``.

    Returns:
        Scores, 0 to 1, ``(...)``.
    """
    length, reference_length, function, reference_function = statistics[:4]
    # per kind of match: content words in the candidate and the reference, then function words likewise
    matches = statistics[4:20].reshape(4, 4, *statistics.shape[1:])
    chunks, matched, reference_matched = statistics[20:]

    def share(words: Floats, function_words: Floats, content_hits: Floats, function_hits: Floats) -> Floats:
        weighted = np.tensordot(WEIGHTS, _DELTA * content_hits + (1 - _DELTA) * function_hits, 1)
        total = _DELTA * (words - function_words) + (1 - _DELTA) * function_words
        return np.divide(weighted, total, out=np.zeros_like(total), where=total > 0)

    precision = share(length, function, matches[:, 0], matches[:, 2])
    recall = share(reference_length, reference_function, matches[:, 1], matches[:, 3])
    bottom = _ALPHA * precision + (1 - _ALPHA) * recall
    mean = np.divide(precision * recall, bottom, out=np.zeros_like(bottom), where=bottom > 0)
    average = (matched + reference_matched) / 2
    broken = np.divide(chunks, average, out=np.zeros_like(average), where=average > 0)
    return mean * (1 - _GAMMA * broken**_BETA)
