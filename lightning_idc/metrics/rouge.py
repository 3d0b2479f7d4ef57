"""ROUGE-L (Lin 2004) as COCO's evaluation computes it: best precision and best recall over the references."""

from __future__ import annotations

import numpy as np

from lightning_idc.metrics.corpus import Corpus, Floats, Tokens

_BETA2 = 1.2**2


def longest_common_subsequence(masks: dict[str, int], length: int, reference: Tokens) -> int:
    """Length of the longest common subsequence, bit-parallel (Hyyrö 2004).

    Args:
        masks: bits of the positions of each word of the candidate.
        length: number of tokens of the candidate.
        reference: tokens of the reference.
    """
    all_bits = (1 << length) - 1
    row = all_bits
    for word in reference:
        hits = row & masks.get(word, 0)
        row = ((row + hits) | (row - hits)) & all_bits
    return length - row.bit_count()


def rouge_l(corpus: Corpus) -> tuple[float, Floats]:
    """ROUGE-L of the corpus, the mean over pairs, and of every pair ``(P,)``, 0 to 1.

    Lin 2004, Eq. 2 to 4

    Example:
        >>> from lightning_idc.metrics.corpus import ReferenceCounts
        >>> corpus = Corpus([["the", "cube", "moved"]], ReferenceCounts([[["the", "red", "cube", "moved"]]]))
        >>> round(rouge_l(corpus)[0], 4)
        0.8356
    """
    scores = np.zeros(corpus.pairs)
    for number, (candidate, references) in enumerate(zip(corpus.candidates, corpus.references.tokens, strict=True)):
        # COCO's evaluation treats an empty caption as one empty word
        candidate = candidate or [""]
        masks: dict[str, int] = {}
        for position, word in enumerate(candidate):
            masks[word] = masks.get(word, 0) | 1 << position
        precision = recall = 0.0
        for reference in references:
            reference = reference or [""]
            common = longest_common_subsequence(masks, len(candidate), reference)
            precision = max(precision, common / len(candidate))
            recall = max(recall, common / len(reference))
        if precision and recall:
            scores[number] = (1 + _BETA2) * precision * recall / (recall + _BETA2 * precision)
    return float(scores.mean()), scores
