"""METEOR's normalisation of lines (``-norm``): spaces around punctuation, then lower case.

Derived from the program's output for single characters in every context and for random lines. Letters of a few scripts
are recognised; other characters are punctuation. The rules run in order, each over the line once, so that of two
matches that share a character only the first is replaced ("a-b-c" becomes "a b-c").
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from string import ascii_uppercase

import numpy as np

_DIGIT = "0-9"
_LETTER = r"A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u017e\u0400-\u0527\u1d00-\u1d7f\ua640-\ua66e\ua67e-\ua697"
_SIGN = _DIGIT + _LETTER
_BLANK = r" \t\f\r\n"
# separate characters until the last step, which drops them
_SPACES = re.compile("[\u00a0\u2000-\u200a\u202f\u205f\u3000]")
# Java removes them from the ends of a line
_CONTROL = "".join(map(chr, range(33)))
# a sign that is neither a letter nor a figure, or a space that is not between two of them
_UNUSUAL = re.compile("[^a-z0-9 \\n]|  | (?=\\n)")
# words, commas after words, and a full stop at the end: most captions
_PLAIN = re.compile(r"[A-Za-z0-9]+(?:,? [A-Za-z0-9]+)*(?: ?\.)?")
_BLANKS = re.compile(f"[{_BLANK}]+")
_RULES = [
    (sign, re.compile(pattern), replacement)
    for sign, pattern, replacement in (
        ("\u2013", "\u2013", " - "),
        ("", "[`\u2018\u2019]", "'"),
        ("''", "''", '"'),
        ("", "[\u201c\u201d]", '"'),
        # the vertical tab alone is neither a blank nor a sign of its own
        ("", rf"([^{_SIGN}{_BLANK}\x0b.',-])", r" \1 "),
        ("..", r"(\.\.+)", r" \1 "),
        # commas, except within numbers
        (",", rf"([^{_DIGIT}]),([^{_DIGIT}])", r"\1 , \2"),
        (",", rf"([{_DIGIT}]),([^{_DIGIT}])", r"\1 , \2"),
        (",", rf"([^{_DIGIT}]),([{_DIGIT}])", r"\1 , \2"),
        # hyphens
        ("-", "--", "-"),
        ("-", rf"([{_SIGN}.])-([{_SIGN}])", r"\1 \2"),
        # apostrophes: dog 's, ' a, 1990 's
        ("'", rf"([^{_LETTER}])'([^{_LETTER}])", r"\1 ' \2"),
        ("'", rf"([^{_SIGN}])'([{_LETTER}])", r"\1 ' \2"),
        ("'", rf"([{_LETTER}])'([^{_LETTER}])", r"\1 ' \2"),
        ("'", rf"([{_LETTER}])'([{_LETTER}])", r"\1 '\2"),
        ("'", rf"([{_DIGIT}])'(s)", r"\1 '\2"),
    )
]
"""A character without which the rule does not apply, its pattern, and its replacement."""
_HAS_LETTER = re.compile(f"[{_LETTER}]")
# words that keep their full stop; those of the second set keep it before a number
_ABBREVIATIONS = frozenset(
    [
        *ascii_uppercase, "Adj", "Adm", "Adv", "Asst", "Bart", "Bldg", "Brig", "Bros", "Capt", "Cmdr", "Col", "Comdr",
        "Con", "Corp", "Cpl", "DR", "Dr", "Drs", "Ens", "Gen", "Gov", "Hon", "Hosp", "Hr", "Insp", "Lt", "MM", "MR",
        "MRS", "MS", "Maj", "Messrs", "Mlle", "Mme", "Mr", "Mrs", "Ms", "Msgr", "Nos", "Nr", "Op", "Ord", "Pfc", "Ph",
        "Prof", "Pvt", "Rep", "Reps", "Res", "Rev", "Rt", "Sen", "Sens", "Sfc", "Sgt", "Sr", "St", "Supt", "Surg",
        "rev", "v", "vs",
    ]
)  # fmt: skip
_BEFORE_NUMBERS = frozenset(["No", "Art", "pp"])


def normalize_all(lines: Sequence[str]) -> list[str]:
    """Words of every line with single spaces between them, as METEOR compares them (``-norm``, English).

    Example:
        >>> normalize_all(["a red cube", "The dog's red-brown ball, No. 5."])
        ['a red cube', "the dog 's red brown ball , no. 5 ."]
    """
    # nearly all lines hold only letters and single spaces, which one search over all of them verifies
    text = "".join([f" {line}\n" for line in lines])
    if text.count("\n") > len(lines):
        return normalize_all([line.replace("\n", " ") for line in lines])
    unusual = [match.end() for match in _UNUSUAL.finditer(text)]
    ends = np.cumsum(np.fromiter(map(len, lines), dtype=np.int64, count=len(lines)) + 2)
    normalized = list(lines)
    for number in np.unique(np.searchsorted(ends, unusual)).tolist():
        normalized[number] = " ".join(normalize(lines[number]))
    return normalized


def normalize(line: str) -> list[str]:
    """Words of a line as METEOR compares them."""
    return _plain(line) if _PLAIN.fullmatch(line) else _by_rules(line)


def _plain(line: str) -> list[str]:
    """The result of the rules for a line of ``_PLAIN``, in a quarter of their time."""
    body, stop, _ = line.partition(".")
    if stop and body.rpartition(" ")[2] in _ABBREVIATIONS:
        return _by_rules(line)
    return [*body.rstrip(" ").replace(",", " ,").lower().split(" "), *stop]


def _by_rules(line: str) -> list[str]:
    text = f" {line} "
    for sign, pattern, replacement in _RULES:
        if sign in text:
            text = pattern.sub(replacement, text)
    chunks = [chunk for chunk in _BLANKS.split(text) if chunk]
    words: list[str] = []
    if "." in text:
        for chunk, following in pairwise([*chunks, ""]):
            words += _full_stop(chunk, following)
    else:
        words = chunks
    line = _SPACES.sub(" ", " ".join(words))
    return [word for word in line.strip(_CONTROL).lower().split(" ") if word]


def _full_stop(chunk: str, following: str) -> list[str]:
    """A chunk with its full stop attached, separate or removed."""
    if len(chunk) < 2 or chunk[-1] != "." or not chunk.strip("."):
        return [chunk]
    word = chunk[:-1]
    if "." in word and _HAS_LETTER.search(word):
        return [chunk.replace(".", "")]
    lower_follows = "a" <= following[:1] <= "z"
    number_follows = "0" <= following[:1] <= "9"
    if word in _ABBREVIATIONS or lower_follows or (number_follows and word in _BEFORE_NUMBERS):
        return [chunk]
    return [word, "."]
