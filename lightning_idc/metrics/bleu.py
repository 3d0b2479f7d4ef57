"""BLEU-1 to 4 as COCO's evaluation computes it (Papineni et al. 2002, closest reference length)."""

from __future__ import annotations

import numpy as np

from lightning_idc.metrics.corpus import MOST_WORDS, Corpus, Floats, Ints

# as in pycocoevalcap, so that an empty candidate scores almost 0 instead of failing
_SMALL, _TINY = 1e-9, 1e-15


def bleu(corpus: Corpus) -> tuple[Floats, Floats]:
    """BLEU-1 to 4 of the corpus ``(4,)`` and of every pair ``(4, P)``."""
    lengths = corpus.lengths[: corpus.pairs]
    correct = np.zeros((MOST_WORDS, corpus.pairs))
    for n, grams in enumerate(corpus.grams):
        own = grams.caption < corpus.pairs
        keys = corpus.owner[grams.caption] * grams.total + grams.gram
        reference_keys, highest = _greatest(keys[~own], grams.count[~own])
        allowed = _lookup(reference_keys, highest, keys[own])
        clipped = np.minimum(grams.count[own], allowed)
        correct[n] = np.bincount(grams.caption[own], weights=clipped, minlength=corpus.pairs)
    guesses = np.maximum(lengths[None] - np.arange(MOST_WORDS)[:, None], 0)
    closest = _closest_lengths(corpus, lengths)
    whole = _score(correct.sum(1), guesses.sum(1), lengths.sum(), closest.sum())
    return whole, _score(correct, guesses, lengths, closest)


def _score(correct: Floats, guesses: Floats | Ints, length: Floats | Ints, reference_length: Floats) -> Floats:
    precision = (correct + _TINY) / (guesses + _SMALL)
    powers = (1.0 / np.arange(1, MOST_WORDS + 1)).reshape(-1, *[1] * (precision.ndim - 1))
    ratio = (length + _TINY) / (reference_length + _SMALL)
    with np.errstate(over="ignore"):
        brevity = np.where(ratio < 1, np.exp(1 - 1 / ratio), 1.0)
    return np.cumprod(precision, 0) ** powers * brevity


def _closest_lengths(corpus: Corpus, lengths: Ints) -> Floats:
    """Per pair the reference length closest to the candidate's, the shorter one of two equally close."""
    references = corpus.lengths[corpus.pairs :]
    owner = corpus.owner[corpus.pairs :]
    order = np.lexsort((references, np.abs(references - lengths[owner]), owner))
    first = np.cumsum(corpus.reference_counts) - corpus.reference_counts
    return references[order][first].astype(np.float64)


def _greatest(keys: Ints, values: Ints) -> tuple[Ints, Ints]:
    """Distinct keys, sorted, with the greatest value of each."""
    order = np.argsort(keys, kind="stable")
    keys, values = keys[order], values[order]
    starts = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]]) if len(keys) else np.zeros(0, dtype=np.int64)
    return keys[starts], np.maximum.reduceat(values, starts) if len(keys) else values


def _lookup(keys: Ints, values: Ints, wanted: Ints) -> Ints:
    """Value of each wanted key, 0 where it is absent."""
    if not len(keys):
        return np.zeros(len(wanted), dtype=np.int64)
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, values[place], 0)
