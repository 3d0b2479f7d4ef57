"""CIDEr and CIDEr-D (Vedantam et al. 2015); what pycocoevalcap calls Cider is CIDEr-D."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lightning_idc.metrics.corpus import MAX_ORDER, Corpus, Floats, Ints, ReferenceCounts, find, pair_keys

_SIGMA = 6.0


def cider_d(corpus: Corpus, frequencies: ReferenceCounts | None = None) -> tuple[float, Floats]:
    """CIDEr-D of the corpus and of every pair ``(P,)``, on the scale where 10 is the most.

    Document frequencies come from the references of the corpus itself unless others are given, so the scores of a
    subset differ from those of the whole. A corpus of one pair then scores 0, since every n-gram is in all its
    documents.

    Args:
        corpus: candidates and references.
        frequencies: references of another corpus, one document per pair, which say how rare an n-gram is.

    Example:
        >>> texts = ["the red cube moved", "the small ball is gone"]
        >>> corpus = Corpus([text.split() for text in texts], ReferenceCounts([[text.split()] for text in texts]))
        >>> round(cider_d(corpus)[0], 4)
        10.0
    """
    references = corpus.references
    # the penalty compares lengths counted in bigrams, as pycocoevalcap does
    bigrams = np.maximum(corpus.lengths - 1, 0) - 0.0
    delta = bigrams[references.owner] - np.maximum(references.lengths - 1, 0)
    return _mean_similarity(corpus, frequencies, np.exp(-(delta**2) / (2 * _SIGMA**2)), clipped=True)


def cider(corpus: Corpus, frequencies: ReferenceCounts | None = None) -> tuple[float, Floats]:
    """CIDEr (equations 2 and 3 of the paper, times 10): plain cosines, which reward saying a rare word again and again.

    Args:
        corpus: candidates and references.
        frequencies: as in :func:`cider_d`.

    Example:
        >>> texts = ["the red cube moved", "the small ball is gone"]
        >>> corpus = Corpus([text.split() for text in texts], ReferenceCounts([[text.split()] for text in texts]))
        >>> round(cider(corpus)[0], 4)
        10.0
    """
    return _mean_similarity(corpus, frequencies, np.ones(len(corpus.references.owner)), clipped=False)


@dataclass(frozen=True)
class _Weighed:
    """Weights of n-grams for one n; keys are pair and n-gram in one number, sorted for candidates.

    Args:
        key: of the candidates, ``(E,)``.
        weight: ``(E,)``.
        norm: of each candidate, ``(P,)``.
        known_caption: number of the reference, ``(F,)``.
        known_key: ``(F,)``.
        known_weight: ``(F,)``.
        known_norm: of each reference, ``(R,)``.
    """

    key: Ints
    weight: Floats
    norm: Floats
    known_caption: Ints
    known_key: Ints
    known_weight: Floats
    known_norm: Floats


def _mean_similarity(
    corpus: Corpus, frequencies: ReferenceCounts | None, penalty: Floats, clipped: bool
) -> tuple[float, Floats]:
    owner = corpus.references.owner
    similarity = np.zeros(len(owner))
    for grams in _own_weights(corpus) if frequencies is None else _foreign_weights(corpus, frequencies):
        place, shared = find(grams.key, grams.known_key)
        said, known = grams.weight[place[shared]], grams.known_weight[shared]
        products = (np.minimum(said, known) if clipped else said) * known
        # of nothing bincount makes integers, weights or not
        dots = np.bincount(grams.known_caption[shared], weights=products, minlength=len(owner)).astype(np.float64)
        scale = grams.norm[owner] * grams.known_norm
        similarity += np.divide(dots, scale, out=dots.copy(), where=scale != 0) * penalty
    scores = 10.0 / MAX_ORDER * np.bincount(owner, weights=similarity, minlength=corpus.pairs)
    scores = scores / corpus.references.per_pair
    return float(scores.mean()), scores


def _own_weights(corpus: Corpus) -> Iterator[_Weighed]:
    for grams, known in zip(corpus.grams, corpus.references.grams, strict=True):
        # n-grams that no reference has are as rare as can be
        rarity = np.append(known.rarity, np.log(float(max(corpus.pairs, 1))))
        weight = grams.count * rarity[np.minimum(grams.gram, len(known.rarity))]
        norm = _norms(grams.caption, weight, corpus.pairs)
        yield _Weighed(grams.key, weight, norm, known.caption, known.key, known.weight, known.norm)


def _foreign_weights(corpus: Corpus, frequencies: ReferenceCounts) -> Iterator[_Weighed]:
    """Candidates and references together are looked up in the other corpus, so that both count by its n-grams."""
    flat = [tokens for of_pair in corpus.references.tokens for tokens in of_pair]
    pairs, owner = corpus.pairs, corpus.references.owner
    both = Corpus([*corpus.candidates, *flat], frequencies)
    for grams, known in zip(both.grams, frequencies.grams, strict=True):
        rarity = np.append(known.rarity, np.log(float(max(frequencies.pairs, 1))))
        weight = grams.count * rarity[np.minimum(grams.gram, len(known.rarity))]
        norm = _norms(grams.caption, weight, pairs + len(flat))
        said = grams.caption < pairs
        caption = grams.caption[~said] - pairs
        yield _Weighed(
            pair_keys(grams.caption[said], grams.gram[said]),
            weight[said],
            norm[:pairs],
            caption,
            pair_keys(owner[caption], grams.gram[~said]),
            weight[~said],
            norm[pairs:],
        )


def _norms(caption: Ints, weight: Floats, captions: int) -> Floats:
    return np.sqrt(np.bincount(caption, weights=weight**2, minlength=captions).astype(np.float64))
