"""WordNet synsets of words, from the files inside METEOR's jar.

A word has the synsets that the dictionary lists for it, and those of its base form. The base form comes from the list
of irregular forms or, for other words, from the first of WordNet's detachment rules that leads to a listed word.
"""

from __future__ import annotations

from collections.abc import Iterator
from zipfile import ZipFile

_RULES = (
    ("s", ""), ("ses", "s"), ("xes", "x"), ("zes", "z"), ("ches", "ch"), ("shes", "sh"), ("men", "man"), ("ies", "y"),
    ("es", "e"), ("es", ""), ("ed", "e"), ("ed", ""), ("ing", "e"), ("ing", ""), ("er", ""), ("er", "e"), ("est", ""),
    ("est", "e"),
)  # fmt: skip


class WordNet:
    """Synsets by word.

    Args:
        jar: METEOR's jar.

    Raises:
        KeyError: the jar lacks a file.
    """

    def __init__(self, jar: ZipFile) -> None:
        self._synsets = dict(_pairs(jar, "synonym/english.synsets"))
        self._bases: dict[str, list[str]] = {}
        for base, forms in _pairs(jar, "synonym/english.exceptions"):
            for form in forms.split():
                self._bases.setdefault(form, []).append(base)

    def synsets(self, word: str) -> list[int]:
        """Sorted numbers of the synsets of a word in lower case."""
        numbers = {number for form in (word, *self._base_forms(word)) for number in self._synsets.get(form, "").split()}
        return sorted(map(int, numbers))

    def _base_forms(self, word: str) -> list[str]:
        if word in self._bases:
            return self._bases[word]
        if word.endswith("ss") or len(word) < 3:
            return []
        forms = (word[: -len(ending)] + base for ending, base in _RULES if word.endswith(ending))
        return next(([form] for form in forms if form in self._synsets), [])


def _pairs(jar: ZipFile, name: str) -> Iterator[tuple[str, str]]:
    """Iterate over the 150,000 lines of a file in groups of two."""
    lines = jar.read(name).decode("utf-8").splitlines()
    return zip(lines[::2], lines[1::2], strict=True)
