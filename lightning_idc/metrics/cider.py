"""CIDEr-D (Vedantam et al. 2015), which is what pycocoevalcap calls Cider."""

from __future__ import annotations

import numpy as np

from lightning_idc.metrics.corpus import MOST_WORDS, Corpus, Floats

_SIGMA = 6.0


def cider_d(corpus: Corpus) -> tuple[float, Floats]:
    """CIDEr-D of the corpus and of every pair ``(P,)``, on the scale where 10 is the most.

    Document frequencies come from the references of the corpus itself, so the scores of a subset differ from those
    of the whole. A corpus of one pair scores 0, since every n-gram is in all its documents.
    """
    log_pairs = np.log(float(max(corpus.pairs, 1)))
    captions = len(corpus.lengths)
    reference_number = np.arange(captions) - corpus.pairs
    similarity = np.zeros(captions - corpus.pairs)
    # the penalty compares lengths counted in bigrams, as pycocoevalcap does
    bigrams = np.maximum(corpus.lengths - 1, 0).astype(np.float64)
    owner = corpus.owner
    delta = bigrams[owner[corpus.pairs :]] - bigrams[corpus.pairs :]
    penalty = np.exp(-(delta**2) / (2 * _SIGMA**2))
    for grams in corpus.grams:
        own = grams.caption < corpus.pairs
        keys = owner[grams.caption] * grams.total + grams.gram
        documents = np.bincount(np.unique(keys[~own]) % grams.total, minlength=grams.total)
        weights = grams.count * (log_pairs - np.log(np.maximum(1.0, documents)))[grams.gram]
        norms = np.sqrt(np.bincount(grams.caption, weights=weights**2, minlength=captions))
        # candidates are sorted by caption and so by key
        own_keys, own_weights = keys[own], weights[own]
        if not len(own_keys):
            continue
        place = np.minimum(np.searchsorted(own_keys, keys[~own]), len(own_keys) - 1)
        shared = np.where(own_keys[place] == keys[~own], own_weights[place], 0.0)
        # an n-gram that the candidate lacks has weight 0 there and adds nothing
        product = np.where(own_keys[place] == keys[~own], np.minimum(shared, weights[~own]) * weights[~own], 0.0)
        # of nothing bincount makes integers, weights or not
        dots = np.bincount(reference_number[grams.caption[~own]], weights=product, minlength=len(similarity)).astype(
            np.float64
        )
        scale = norms[owner[corpus.pairs :]] * norms[corpus.pairs :]
        similarity += np.divide(dots, scale, out=dots.copy(), where=scale != 0) * penalty
    sums = np.bincount(owner[corpus.pairs :], weights=similarity, minlength=corpus.pairs)
    scores = 10.0 * sums / MOST_WORDS / corpus.reference_counts
    return float(scores.mean()), scores
