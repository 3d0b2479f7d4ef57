"""Quotes: the words of two texts that differ, and excerpts that fit into a sentence."""

from __future__ import annotations

import re

MAX_LETTERS = 40
"""Largest number of letters of an excerpt."""


def excerpt(text: str) -> str:
    """First words of a text, up to the end of its first sentence and without quotes: a caption is one sentence.

    Example:
        >>> excerpt('Read "more" text. And more.')
        "Read 'more' text..."
    """
    words = " ".join(text.replace('"', "'").split())
    first = re.split(r"(?<=\w)[.;!](?:\s+|$)", words)[0]
    return first[:MAX_LETTERS] + ("..." if len(first) > MAX_LETTERS or len(first) + 1 < len(words) else "")


def differing_words(old: str, new: str) -> tuple[str, str]:
    """Words of two texts between the ones with which both begin and end.

    Where one text has only further words, the word before or after them is repeated, since an excerpt cannot be empty.

    Example:
        >>> differing_words("a link of the page", "a link of the new page")
        ('the', 'the new')
    """
    first, second = old.split(), new.split()
    shortest = min(len(first), len(second))
    start = next((k for k in range(shortest) if first[k] != second[k]), shortest)
    end = next((k for k in range(shortest - start) if first[-1 - k] != second[-1 - k]), shortest - start)
    if start + end == shortest and shortest:
        start, end = (start - 1, end) if start else (start, end - 1)
    return " ".join(first[start : len(first) - end]), " ".join(second[start : len(second) - end])
