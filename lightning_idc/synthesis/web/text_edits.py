"""edit_text: another text for an element of a page, from a new one to a single other letter or digit.

Edits of real pages are small: another number of a version, a letter, a word, or a few words more or fewer.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable
from typing import Literal

import numpy as np

from lightning_idc.synthesis.web.words import Words

_WORD = re.compile(r"\S+")
_GLYPHS = (string.digits, "aeiou", "bcdfghjklmnpqrstvwxyz")
"""Glyphs that are exchanged for one another."""
MAX_WORDS = 12
"""Largest number of words that are added or taken out at once."""


def edit_text(text: str, tier: Literal["easy", "medium", "hard"], random: np.random.Generator) -> str:
    """Draw another text; white space and the words around an edit stay as they are.

    Args:
        text: text with at least one word.
        tier: ``easy``: all of it is written anew; ``medium``: one word is another one, or words are added or taken out;
            ``hard``: one word gets another digit or letter, one more, or one fewer.
        random: generator of the choices.

    Example:
        >>> edit_text("version 15.18", "hard", np.random.default_rng(5))
        'version 15.14'
    """
    words, spans = Words(random), [match.span() for match in _WORD.finditer(text)]
    if tier == "easy":
        return _other(text, lambda: _written_anew(len(spans), words))
    first = int(random.integers(len(spans)))
    if tier == "hard":
        numbers = [index for index, (start, stop) in enumerate(spans) if re.search(r"\d", text[start:stop])]
        if numbers and random.integers(2):
            first = numbers[int(random.integers(len(numbers)))]
        return _exchanged(text, spans[first], lambda word: _with_other_glyph(word, random))
    edit = ("exchange", "add", "take out")[int(random.integers(3))]
    if edit == "add":
        position = spans[first][0]
        return f"{text[:position]}{_some_words(int(random.integers(1, MAX_WORDS + 1)), words)} {text[position:]}"
    if edit == "take out" and len(spans) > 1:
        last = min(len(spans) - 1, first + int(random.integers(MAX_WORDS)))
        if (first, last) != (0, len(spans) - 1):  # a text without words is no text
            end = spans[last + 1][0] if last + 1 < len(spans) else len(text)
            return (text[: spans[first][0]] + text[end:]).rstrip()
    return _exchanged(text, spans[first], lambda word: _word_like(word, words))


def _exchanged(text: str, span: tuple[int, int], draw: Callable[[str], str]) -> str:
    """A text with another word at a span."""
    word = text[slice(*span)]
    return text[: span[0]] + _other(word, lambda: draw(word)) + text[span[1] :]


def _other(old: str, draw: Callable[[], str]) -> str:
    """Draw until the text differs."""
    while (new := draw()) == old:
        pass
    return new


def _some_words(count: int, words: Words) -> str:
    return " ".join(words.paragraph(2, 3).rstrip(".").lower().split()[:count])


def _written_anew(count: int, words: Words) -> str:
    """A text of about as many words."""
    if count <= 2:
        return words.label()
    if count <= 5:
        return words.title()
    return words.paragraph(max(1, count // 14), max(1, count // 8))


def _word_like(word: str, words: Words) -> str:
    """Another word or number, capitalised as the old one, between the same punctuation."""
    core = word.strip(string.punctuation)
    if not core:
        return words.label()
    if re.search(r"\d", core):
        return re.sub(r"\d+", lambda match: str(words.number(0, 10 ** min(len(match[0]), 9) - 1)), word)
    new = words.label().split()[-1].lower()
    new = new.upper() if core.isupper() and len(core) > 1 else new.capitalize() if core[0].isupper() else new
    return word.replace(core, new, 1)


def _with_other_glyph(word: str, random: np.random.Generator) -> str:
    """A word with another digit or letter, one more, or one fewer."""
    positions = [index for index, glyph in enumerate(word) if glyph.isalnum()] or [0]
    digits = [index for index in positions if word[index].isdigit()]
    index = int(random.choice(digits if digits and random.integers(2) else positions))
    glyph = word[index]
    glyphs = next((group for group in _GLYPHS if glyph.lower() in group), _GLYPHS[-1])
    drawn = str(random.choice(list(glyphs)))
    drawn = drawn.upper() if glyph.isupper() else drawn
    kind = int(random.integers(5))  # most edits exchange a glyph
    if kind == 0:
        return word[:index] + drawn + word[index:]
    if kind == 1 and len(word) > 1:
        return word[:index] + word[index + 1 :]
    return word[:index] + drawn + word[index + 1 :]
