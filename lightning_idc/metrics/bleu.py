"""BLEU-1 to 4 as COCO's evaluation computes it (Papineni et al. 2002, closest reference length)."""

from __future__ import annotations

import numpy as np

from lightning_idc.metrics.corpus import MAX_ORDER, Corpus, Floats, Ints, find

# as in pycocoevalcap: an empty candidate scores almost 0
_SMALL, _TINY = 1e-9, 1e-15


def bleu(corpus: Corpus) -> tuple[Floats, Floats]:
    """BLEU-1 to 4 of the corpus ``(4,)`` and of every pair ``(4, P)``."""
    statistics = bleu_statistics(corpus)
    return from_statistics(statistics.sum(1)), from_statistics(statistics)


def bleu_statistics(corpus: Corpus) -> Floats:
    """Counts of every pair, whose sums give the BLEU of any set of pairs, ``(10, P)``.

    Rows: matching n-grams for n = 1 to 4, all n-grams for n = 1 to 4, words, words of the closest reference.
    """
    lengths = corpus.lengths
    correct = np.zeros((MAX_ORDER, corpus.pairs))
    for n, (grams, reference_grams) in enumerate(zip(corpus.grams, corpus.references.grams, strict=True)):
        index, is_shared = find(reference_grams.pair_key, grams.key)
        clipped = np.minimum(grams.count[is_shared], reference_grams.max_count[index[is_shared]])
        correct[n] = np.bincount(grams.caption[is_shared], weights=clipped, minlength=corpus.pairs)
    guesses = np.maximum(lengths[None] - np.arange(MAX_ORDER)[:, None], 0)
    return np.concatenate([correct, guesses, lengths[None], _closest_lengths(corpus, lengths)[None]])


def from_statistics(statistics: Floats) -> Floats:
    """BLEU-1 to 4 from summed counts.

    Args:
        statistics: sums of :func:`bleu_statistics`, ``(10, ...)``.

    Returns:
        Scores, 0 to 1, ``(4, ...)``.
    """
    correct, guesses, (length, reference_length) = np.split(statistics, [MAX_ORDER, 2 * MAX_ORDER])
    precision = (correct + _TINY) / (guesses + _SMALL)
    powers = (1.0 / np.arange(1, MAX_ORDER + 1)).reshape(-1, *[1] * (precision.ndim - 1))
    ratio = (length + _TINY) / (reference_length + _SMALL)
    with np.errstate(over="ignore"):
        brevity = np.where(ratio < 1, np.exp(1 - 1 / ratio), 1.0)
    return np.cumprod(precision, 0) ** powers * brevity


def _closest_lengths(corpus: Corpus, lengths: Ints) -> Floats:
    """Reference length closest to the candidate's length, per pair; the shorter one of a tie."""
    references, pair_index = corpus.references.lengths, corpus.references.pair_index
    order = np.lexsort((references, np.abs(references - lengths[pair_index]), pair_index))
    first = np.cumsum(corpus.references.per_pair) - corpus.references.per_pair
    return references[order][first].astype(np.float64)
