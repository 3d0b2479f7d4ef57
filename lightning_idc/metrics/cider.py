"""CIDEr and CIDEr-D (Vedantam et al. 2015); pycocoevalcap's Cider is CIDEr-D."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lightning_idc.metrics.corpus import MAX_ORDER, Corpus, Floats, Ints, ReferenceCounts, find, pair_keys

_SIGMA = 6.0


def cider_d(corpus: Corpus, frequencies: ReferenceCounts | None = None) -> tuple[float, Floats]:
    """CIDEr-D of the corpus and of every pair ``(P,)``, 0 to 10.

    Document frequencies come from the references of the corpus itself unless another corpus is passed, so the scores
    of a subset differ from those of all pairs. A corpus of one pair then scores 0: every n-gram is in every document.

    Args:
        corpus: candidates and references.
        frequencies: references of another corpus that define the document frequencies, one document per pair.

    Example:
        >>> texts = ["the red cube moved", "the small ball is gone"]
        >>> corpus = Corpus([text.split() for text in texts], ReferenceCounts([[text.split()] for text in texts]))
        >>> round(cider_d(corpus)[0], 4)
        10.0
    """
    references = corpus.references
    # the penalty compares lengths counted in bigrams, as pycocoevalcap does
    bigrams = np.maximum(corpus.lengths - 1, 0) - 0.0
    delta = bigrams[references.pair_index] - np.maximum(references.lengths - 1, 0)
    return _mean_similarity(corpus, frequencies, np.exp(-(delta**2) / (2 * _SIGMA**2)), clipped=True)


def cider(corpus: Corpus, frequencies: ReferenceCounts | None = None) -> tuple[float, Floats]:
    """CIDEr (equations 2 and 3 of the paper, times 10): plain cosines, which reward repeating a rare word.

    Args:
        corpus: candidates and references.
        frequencies: as in :func:`cider_d`.

    Example:
        >>> texts = ["the red cube moved", "the small ball is gone"]
        >>> corpus = Corpus([text.split() for text in texts], ReferenceCounts([[text.split()] for text in texts]))
        >>> round(cider(corpus)[0], 4)
        10.0
    """
    return _mean_similarity(corpus, frequencies, np.ones(len(corpus.references.pair_index)), clipped=False)


@dataclass(frozen=True)
class _Weights:
    """Weights of n-grams for one n; a key holds pair and n-gram in one number.

    Args:
        key: pair and n-gram of each candidate n-gram, sorted, ``(E,)``.
        weight: count times inverse document frequency, ``(E,)``.
        norm: norm of each candidate's weights, ``(P,)``.
        reference_caption: index of the reference, ``(F,)``.
        reference_key: pair and n-gram of each reference n-gram, ``(F,)``.
        reference_weight: count times inverse document frequency, ``(F,)``.
        reference_norm: norm of each reference's weights, ``(R,)``.
    """

    key: Ints
    weight: Floats
    norm: Floats
    reference_caption: Ints
    reference_key: Ints
    reference_weight: Floats
    reference_norm: Floats


def _mean_similarity(
    corpus: Corpus, frequencies: ReferenceCounts | None, penalty: Floats, clipped: bool
) -> tuple[float, Floats]:
    pair_index = corpus.references.pair_index
    similarity = np.zeros(len(pair_index))
    for grams in _corpus_weights(corpus) if frequencies is None else _foreign_weights(corpus, frequencies):
        index, shared = find(grams.key, grams.reference_key)
        weight, reference_weight = grams.weight[index[shared]], grams.reference_weight[shared]
        products = (np.minimum(weight, reference_weight) if clipped else weight) * reference_weight
        # bincount of an empty array returns integers even with float weights
        dots = np.bincount(grams.reference_caption[shared], weights=products, minlength=len(pair_index)).astype(
            np.float64
        )
        scale = grams.norm[pair_index] * grams.reference_norm
        similarity += np.divide(dots, scale, out=dots.copy(), where=scale != 0) * penalty
    scores = 10.0 / MAX_ORDER * np.bincount(pair_index, weights=similarity, minlength=corpus.pairs)
    scores = scores / corpus.references.per_pair
    return float(scores.mean()), scores


def _corpus_weights(corpus: Corpus) -> Iterator[_Weights]:
    for grams, reference_grams in zip(corpus.grams, corpus.references.grams, strict=True):
        # n-grams of no reference have document frequency 0, which counts as 1
        idf = np.append(reference_grams.idf, np.log(float(max(corpus.pairs, 1))))
        weight = grams.count * idf[np.minimum(grams.gram, len(reference_grams.idf))]
        norm = _norms(grams.caption, weight, corpus.pairs)
        yield _Weights(
            key=grams.key,
            weight=weight,
            norm=norm,
            reference_caption=reference_grams.caption,
            reference_key=reference_grams.key,
            reference_weight=reference_grams.weight,
            reference_norm=reference_grams.norm,
        )


def _foreign_weights(corpus: Corpus, frequencies: ReferenceCounts) -> Iterator[_Weights]:
    """Weights by the document frequencies of another corpus, in whose n-grams both sides are counted."""
    flat = [tokens for pair_references in corpus.references.tokens for tokens in pair_references]
    pairs, pair_index = corpus.pairs, corpus.references.pair_index
    corpus_of_both = Corpus([*corpus.candidates, *flat], frequencies)
    for grams, reference_grams in zip(corpus_of_both.grams, frequencies.grams, strict=True):
        idf = np.append(reference_grams.idf, np.log(float(max(frequencies.pairs, 1))))
        weight = grams.count * idf[np.minimum(grams.gram, len(reference_grams.idf))]
        norm = _norms(grams.caption, weight, pairs + len(flat))
        is_candidate = grams.caption < pairs
        caption = grams.caption[~is_candidate] - pairs
        yield _Weights(
            key=pair_keys(grams.caption[is_candidate], grams.gram[is_candidate]),
            weight=weight[is_candidate],
            norm=norm[:pairs],
            reference_caption=caption,
            reference_key=pair_keys(pair_index[caption], grams.gram[~is_candidate]),
            reference_weight=weight[~is_candidate],
            reference_norm=norm[pairs:],
        )


def _norms(caption: Ints, weight: Floats, captions: int) -> Floats:
    return np.sqrt(np.bincount(caption, weights=weight**2, minlength=captions).astype(np.float64))
