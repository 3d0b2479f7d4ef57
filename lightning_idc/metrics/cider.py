"""CIDEr-D (Vedantam et al. 2015), which is what pycocoevalcap calls Cider."""

from __future__ import annotations

import numpy as np

from lightning_idc.metrics.corpus import MOST_WORDS, Corpus, Floats, find

_SIGMA = 6.0


def cider_d(corpus: Corpus) -> tuple[float, Floats]:
    """CIDEr-D of the corpus and of every pair ``(P,)``, on the scale where 10 is the most.

    Document frequencies come from the references of the corpus itself, so the scores of a subset differ from those
    of the whole. A corpus of one pair scores 0, since every n-gram is in all its documents.
    """
    references = corpus.references
    owner = references.owner
    # the penalty compares lengths counted in bigrams, as pycocoevalcap does
    bigrams = np.maximum(corpus.lengths - 1, 0) - 0.0
    delta = bigrams[owner] - np.maximum(references.lengths - 1, 0)
    penalty = np.exp(-(delta**2) / (2 * _SIGMA**2))
    similarity = np.zeros(len(owner))
    for grams, known in zip(corpus.grams, references.grams, strict=True):
        # n-grams that no reference has are as rare as can be
        rarity = np.append(known.rarity, np.log(float(max(corpus.pairs, 1))))
        weights = grams.count * rarity[np.minimum(grams.gram, len(known.rarity))]
        norms = np.sqrt(np.bincount(grams.caption, weights=weights**2, minlength=corpus.pairs))
        place, shared = find(grams.key, known.key)
        products = np.minimum(weights[place[shared]], known.weight[shared]) * known.weight[shared]
        # of nothing bincount makes integers, weights or not
        dots = np.bincount(known.caption[shared], weights=products, minlength=len(owner)).astype(np.float64)
        scale = norms[owner] * known.norm
        similarity += np.divide(dots, scale, out=dots.copy(), where=scale != 0) * penalty
    scores = 10.0 / MOST_WORDS * np.bincount(owner, weights=similarity, minlength=corpus.pairs) / references.per_pair
    return float(scores.mean()), scores
