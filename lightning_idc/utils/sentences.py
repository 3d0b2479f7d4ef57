"""sentence_end: the end of the first sentence of a text, ignoring full stops in abbreviations and numbers."""

from __future__ import annotations

import re

_TITLES = "mr mrs ms dr prof rev gen capt lt sgt gov mt vs approx cf e.g i.e"
_NUMBERED = "no nos fig figs vol ch pp sec rt apt hwy est ca jan feb mar apr jun jul aug sep sept oct nov dec"
_SHORTENED = "st ave blvd rd sq jr sr inc ltd co corp bros etc ft lb lbs oz dept univ assn feat ph.d"
_NEED_A_WORD = frozenset(_TITLES.split())
"""Abbreviations that never end a sentence."""
_NEED_A_NUMBER = frozenset(_NUMBERED.split())
"""Abbreviations if a number follows, otherwise ordinary words that may end a sentence."""
_MAY_END = frozenset(_SHORTENED.split())
"""Abbreviations that may end a sentence, as may initials and letters with full stops such as U.S. or p.m."""
_LETTERS = re.compile(r"[a-z](?:\.[a-z])*")
_OPENING = re.compile(
    r"(?:The|This|That|These|Those|It|Its|There|They|He|She|I|We|You|A|An|In|On|Here|Both|Each|Neither|While|Overall|"
    r"However|Also|Additionally|Another|Therefore|Thus|So|But|And|Note|Please|No|As|If)\b(?!\.)"
)
_QUOTED = re.compile(
    r"""(?<!\w)"[^"\n]*"|\u201c[^\u201d\n]*\u201d|(?<!\w)'[^'\n]*'(?!\w)|(?<!\w)\u2018[^\u2019\n]*\u2019(?!\w)"""
)
_CLOSING = "\"'\u201d\u2019)\\]"
# punctuation before white space; a full stop directly before a capital letter; the end of a paragraph or list item
_END = re.compile(
    rf"(?P<mark>[.!?\u2026]+)[{_CLOSING}]*(?=\s|$)|(?<=[a-z]{{2}})(?P<joined>\.)(?=[A-Z][a-z])|\n(?=\s*[-*\u2022#A-Z]|[^\S\n]*\n)"
)


def sentence_end(text: str) -> int | None:
    """Return the length of the first sentence, including its punctuation and closing quotes; None if it does not end.

    Full stops in quotes, numbers and abbreviations do not end a sentence; a blank line, or a line break before a
    capital letter or a bullet, does. A final "...", or an abbreviation that requires another word, does not
    end a sentence.

    Example:
        >>> text = 'St. Mary has No. 5, a 3.5 m boat that says "Stop. Look." and a cat. Both are old.'
        >>> text[: sentence_end(text)]
        'St. Mary has No. 5, a 3.5 m boat that says "Stop. Look." and a cat.'
    """
    text = text.rstrip()
    plain = _QUOTED.sub(_mask_quotation, text)
    for match in _END.finditer(plain):
        if match["mark"] is None or _ends(plain[: match.start()], match, plain[match.end() :].lstrip()):
            return match.end()
    return None


def _mask_quotation(quoted: re.Match[str]) -> str:
    """Mask a quotation, except for a mark directly before its closing quote."""
    return "x" * (len(quoted[0]) - 2) + quoted[0][-2:]


def _ends(before: str, match: re.Match[str], after: str) -> bool:
    """Whether punctuation ends a sentence, given the text before and after it."""
    if match["mark"] != "." or len(match[0]) > 1:
        unfinished = match["mark"].endswith(("..", "\u2026"))
        return after.lstrip("\"'\u201c\u2018([")[:1].isupper() or not (after or unfinished)
    spoken = re.search(r"\w[\w.]*$", before)
    word = spoken[0].lower() if spoken is not None else ""
    if word in _NEED_A_WORD:
        return False
    if word in _NEED_A_NUMBER:
        return not after[:1].isdigit()
    if word in _MAY_END or _LETTERS.fullmatch(word):
        return not after or _OPENING.match(after) is not None
    return True
