"""A closed language about changes of web pages: a sentence for each kind of change, direction and kind of element."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NOTHING = "nothing changed"
KINDS = ("part", "link", "paragraph", "list item", "table cell", "heading", "code", "image", "field", "button", "table")
"""Kinds of elements; ``part`` is any other."""
VALUES: dict[str, dict[str, str]] = {
    "add": {"": "added"},
    "alignment": {"left": "left", "center": "to the center", "right": "right"},
    "border": {"": "border"},
    "color": {"": "color"},
    "font_size": {"more": "larger", "less": "smaller"},
    "letter_spacing": {"more": "wider", "less": "narrower"},
    "line_height": {"more": "taller", "less": "smaller"},
    "opacity": {"less": "lower", "more": "higher"},
    "remove": {"": "gone"},
    "rounded": {"more": "round", "less": "square"},
    "spacing": {"more": "wider", "less": "narrower"},
    "text": {"": "text"},
    "translate": {"left": "to the left", "right": "to the right", "up": "up", "down": "down"},
    "weight": {"more": "bold", "less": "normal"},
}
"""Words for each direction by operator."""
_FORMS = {
    "add": "a {kind} was added",
    "alignment": "the text alignment of a {kind} is now {word}",
    "border": "the border of a {kind} has another color",
    "color": "the color of a {kind} is another one",
    "font_size": "the font size of a {kind} is {word}",
    "letter_spacing": "the letter spacing of a {kind} is {word}",
    "line_height": "the line height of a {kind} is {word}",
    "opacity": "the opacity of a {kind} is {word}",
    "remove": "a {kind} was removed",
    "rounded": "the corners of a {kind} are {word}",
    "spacing": "the inner spacing of a {kind} is {word}",
    "text": "the text of a {kind} says something else",
    "translate": "the position of a {kind} moved {word}",
    "weight": "the font weight of a {kind} is {word}",
}


def sentence(operator: str, value: str, kind: str) -> str:
    """Sentence about one change.

    Args:
        operator: key of :data:`VALUES`.
        value: direction, a key of the operator's :data:`VALUES`.
        kind: one of :data:`KINDS`.

    Example:
        >>> sentence("font_size", "more", "heading")
        'the font size of a heading is larger'
    """
    word = VALUES[operator][value]
    text = _FORMS[operator].format(kind=kind, word=word)
    return text.replace("a image", "an image")


def all_sentences() -> list[str]:
    """All sentences about changes, and :data:`NOTHING`."""
    changes = [(operator, value) for operator, values in VALUES.items() for value in values]
    return [*(sentence(operator, value, kind) for operator, value in changes for kind in KINDS), NOTHING]


def sentence_of(facts: Mapping[str, Any]) -> str:
    """Sentence about the change of a record of `ChangeHtml`.

    Args:
        facts: facts ``edit``, ``property``, ``old``, ``new`` and ``element``.
    """
    operator = facts["edit"]
    if operator not in VALUES:
        return NOTHING
    kind = facts["element"] if facts["element"] in KINDS else KINDS[0]
    return sentence(operator, _direction(operator, facts), kind)


def _direction(operator: str, facts: Mapping[str, Any]) -> str:
    if "" in VALUES[operator]:
        return ""
    if operator == "alignment":
        return str(facts["new"])
    new = float(str(facts["new"]).removesuffix("px"))
    if operator == "translate":
        names = ("left", "right") if facts["property"] == "left" else ("up", "down")
        return names[new > 0]
    return "more" if new > float(str(facts["old"]).removesuffix("px")) else "less"
