"""ROUGE-L of LLaVA-Interleave's benchmark, which differs from COCO's ROUGE-L.

Punctuation is removed by rules of visual question answering, captions are cut after 512 characters, and the score is
that of the package ``rouge``: the harmonic mean of precision and recall of the set of words in the longest common
subsequence. It is comparable only with scores of that benchmark.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from lightning_idc.metrics.corpus import Floats

MAX_CHARACTERS = 512
_SIGNS = ';/[]"{}()=+\\_-><@`,?!'
_DIGITS_AROUND_COMMA = re.compile(r"\d,\d")
_FULL_STOP = re.compile(r"\.(?!\d)")
# that program passes a flag as the count, so it removes no more full stops than this
_MAX_FULL_STOPS = 32
_SMALL = 1e-8


def cleaned(text: str) -> str:
    """Text without punctuation, in lower case."""
    text = text.replace("\n", " ").replace("\t", " ").strip()
    has_number = _DIGITS_AROUND_COMMA.search(text) is not None
    cleaned_text = text
    for sign in _SIGNS:
        # next to a space punctuation is removed, within a word it becomes a space
        cleaned_text = cleaned_text.replace(sign, "" if has_number or f"{sign} " in text or f" {sign}" in text else " ")
    cleaned_text = _FULL_STOP.sub("", cleaned_text, count=_MAX_FULL_STOPS)
    return cleaned_text.strip("'").strip('"').strip(")").strip("(").strip().lower()


def interleave_rouge(captions: Sequence[str], references: Sequence[str]) -> tuple[float, Floats]:
    """ROUGE-L of the corpus, the mean over captions, and of every caption with its one reference ``(P,)``, 0 to 1."""
    scores = np.array([_score(caption, reference) for caption, reference in zip(captions, references, strict=True)])
    return float(scores.mean()), scores


def _score(caption: str, reference: str) -> float:
    caption_sentences, reference_sentences = (
        _sentences(cleaned(caption)[:MAX_CHARACTERS]),
        _sentences(cleaned(reference)),
    )
    words, reference_words = (
        {word for tokens in text for word in tokens} for text in (caption_sentences, reference_sentences)
    )
    if not words or not reference_words:
        return 0.0
    common = {
        word
        for reference_tokens in reference_sentences
        for tokens in caption_sentences
        for word in _common(reference_tokens, tokens)
    }
    precision, recall = len(common) / len(words), len(common) / len(reference_words)
    return 2 * precision * recall / (precision + recall + _SMALL)


def _sentences(text: str) -> list[list[str]]:
    return [" ".join(part.split()).split(" ") for part in text.split(".") if part]


def _common(reference: Sequence[str], caption: Sequence[str]) -> list[str]:
    """A longest common subsequence; among several the one that skips the last words of the caption first."""
    table = np.zeros((len(reference) + 1, len(caption) + 1), dtype=np.int64)
    for row, reference_word in enumerate(reference, 1):
        for column, caption_word in enumerate(caption, 1):
            if reference_word == caption_word:
                table[row, column] = table[row - 1, column - 1] + 1
            else:
                table[row, column] = max(table[row - 1, column], table[row, column - 1])
    row, column = len(reference), len(caption)
    common = []
    while row and column:
        if reference[row - 1] == caption[column - 1]:
            common.append(reference[row - 1])
            row, column = row - 1, column - 1
        elif table[row - 1, column] > table[row, column - 1]:
            row -= 1
        else:
            column -= 1
    return common
