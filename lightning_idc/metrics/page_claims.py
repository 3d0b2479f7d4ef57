"""Claims about web pages: which property a sentence says has changed, and on which text."""

from __future__ import annotations

import re

OPERATORS: dict[str, str] = {
    "border": r"border|outline",
    "rounded": r"round(?:ed|er|ing)?\b|corners?|radius|square\b",
    "letter_spacing": r"letter[- ]?spacing|tracking|spac\w* between (?:the )?letters",
    "line_height": r"line[- ]?(?:height|spacing)|leading|lines? (?:are|is) (?:further|closer)",
    "font_size": r"font[- ]?size|text size|(?:text|font|heading|label)\b.{0,60}\b(?:larger|smaller|bigger)",
    "weight": r"font[- ]?weight|\bbold(?:er)?\b|\blighter weight|thicker text|thinner text|(?:normal|regular) weight",
    "opacity": r"opacity|opaque|transparen\w+|\bfaded?\b|\bpaler\b|translucent",
    "alignment": r"\balign\w*|centred|centered|justif\w+",
    "spacing": r"(?:inner |outer )?spacing|padding|margin|indent\w*|\bgap\b",
    "remove": r"remov\w+|disappear\w*|\bgone\b|missing|no longer|deleted|vanish\w*",
    "add": r"\badd(?:ed|ition)\b|\bappear(?:s|ed)?\b|inserted|\bis new\b",
    "text": r"(?:another|other|different|new) (?:text|words?|wording|label)|"
    r"\b(?:text|wording|label) (?:(?:of|in|at) .{0,60})?changed|"
    r"now (?:says|reads)|\breads\b|replaced by|reworded|\bsays\b",
    "translate": r"\bmoved?\b|shift\w*|displaced|position",
    "color": r"colou?r\w*|recolou?red|darker|brighter|\bhue\b|(?:red|blue|green|grey|gray|black|white|orange|purple)\b"
    r".{0,40}\b(?:instead of|to)\b",
}
"""Patterns of the sentences about each operator. A border's colour is a change of the border, and letter spacing is not
the spacing of an element, so that the first operator of this order that matches is the claimed one."""
_PATTERNS = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in OPERATORS.items()}
_QUOTED = re.compile(r'"([^"]*)"|\u201c([^\u201d]*)\u201d')


def claimed_operator(sentence: str) -> str | None:
    """Operator that a sentence names; None if it names none. Words in quotes, the text of an element, do not count.

    Args:
        sentence: one claim.

    Example:
        >>> claimed_operator('the link "Move to color" has another letter spacing: 2px instead of 0px')
        'letter_spacing'
    """
    words = _QUOTED.sub(" ", sentence)
    return next((name for name, pattern in _PATTERNS.items() if pattern.search(words)), None)


def quoted_texts(sentence: str) -> list[str]:
    """Texts in quotes, without the dots of an excerpt.

    Example:
        >>> quoted_texts('the link "Read more about..." was removed')
        ['Read more about']
    """
    texts = (first or second for first, second in _QUOTED.findall(sentence))
    return [text.removesuffix("...").removesuffix("\u2026").strip() for text in texts]
