"""METEOR's counts of alignments, and its score from counts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lightning_idc.metrics.corpus import Floats, Ints
from lightning_idc.metrics.meteor.relations import WEIGHTS, Matches, Sentences

COUNTS = 23
# the program's parameters for English
_ALPHA, _BETA, _GAMMA, _DELTA = 0.85, 0.2, 0.6, 0.75


def count(sentences: Sentences, candidates: Ints, references: Ints, aligned: Matches) -> Floats:
    """Counts of alignments, ``(23, B)``, in the order of METEOR's program; see :class:`MeteorScores`.

    Args:
        sentences: sentences of the corpus.
        candidates: sentence of each pair's candidate, ``(B,)``.
        references: sentence of each pair's reference, ``(B,)``.
        aligned: matches of the alignments, sorted by pair and position.
    """
    pairs = len(candidates)
    counts = np.zeros((COUNTS, pairs))
    num_function_before = np.concatenate([[0], np.cumsum(sentences.function[sentences.words])])
    for side, (rows, first, size) in enumerate(
        ((candidates, aligned.candidate_position, aligned.candidate_size), (references, aligned.position, aligned.size))
    ):
        start = sentences.start[rows]
        counts[side] = sentences.start[rows + 1] - start
        counts[2 + side] = num_function_before[sentences.start[rows + 1]] - num_function_before[start]
        index = start[aligned.pair] + first
        function = num_function_before[index + size] - num_function_before[index]
        for kind in range(4):
            is_kind = aligned.kind == kind
            pair = aligned.pair[is_kind]
            counts[4 + 4 * kind + side] = np.bincount(pair, (size - function)[is_kind], pairs)
            counts[6 + 4 * kind + side] = np.bincount(pair, function[is_kind], pairs)
        counts[21 + side] = np.bincount(aligned.pair, size, pairs)
    counts[20] = np.bincount(aligned.pair[_begins_chunk(aligned)], minlength=pairs)
    return counts


def _begins_chunk(aligned: Matches) -> NDArray[np.bool_]:
    """Whether a match does not continue the match before it."""
    begins = np.ones(len(aligned.pair), dtype=bool)
    begins[1:] = (
        (aligned.pair[1:] != aligned.pair[:-1])
        | (aligned.position[1:] != (aligned.position + aligned.size)[:-1])
        | (aligned.candidate_position[1:] != (aligned.candidate_position + aligned.candidate_size)[:-1])
    )
    return begins


def additive_counts(counts: Floats) -> Floats:
    """Counts ``(23, ...)`` that can be summed: a candidate that matches from end to end counts no chunk."""
    length, reference_length, chunks, matched, reference_matched = counts[0], counts[1], *counts[20:]
    additive = counts.copy()
    additive[20] = np.where((chunks == 1) & (matched == length) & (reference_matched == reference_length), 0, chunks)
    return additive


def from_statistics(statistics: Floats) -> Floats:
    """METEOR from summed counts (Denkowski and Lavie 2014, section 2), equal to the program's to the last digits.

    Args:
        statistics: sums of the statistics of :class:`MeteorScores`, ``(23, ...)``.

    Returns:
        Scores, 0 to 1, ``(...)``.
    """
    length, reference_length, function, reference_function = statistics[:4]
    # per kind of match: content words in the candidate and the reference, then function words likewise
    matches = statistics[4:20].reshape(4, 4, *statistics.shape[1:])
    chunks, matched, reference_matched = statistics[20:]

    def weighted_fraction(words: Floats, function_words: Floats, content_hits: Floats, function_hits: Floats) -> Floats:
        weighted = np.tensordot(WEIGHTS, _DELTA * content_hits + (1 - _DELTA) * function_hits, 1)
        total = _DELTA * (words - function_words) + (1 - _DELTA) * function_words
        return np.divide(weighted, total, out=np.zeros_like(total), where=total > 0)

    precision = weighted_fraction(length, function, matches[:, 0], matches[:, 2])
    recall = weighted_fraction(reference_length, reference_function, matches[:, 1], matches[:, 3])
    bottom = _ALPHA * precision + (1 - _ALPHA) * recall
    mean = np.divide(precision * recall, bottom, out=np.zeros_like(bottom), where=bottom > 0)
    average = (matched + reference_matched) / 2
    fragmentation = np.divide(chunks, average, out=np.zeros_like(average), where=average > 0)
    return mean * (1 - _GAMMA * fragmentation**_BETA)
