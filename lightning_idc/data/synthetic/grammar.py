"""Parser of captions: from any string to its claims.

The parser is the inverse of the templates in `phrases` and `report`. It searches for noun phrases, relations and cue
words, so it also parses other sentences in the style of CLEVR-Change.
"""

from __future__ import annotations

import re

from lightning_idc.data.synthetic.claims import Attributes, ParsedChange
from lightning_idc.data.synthetic.scene import COLORS, MATERIALS, SHAPES, SIZES

NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight")
LETTERS = frozenset("CHILOTUX")

_WORDS = re.compile(r"[a-z0-9]+")
_SPELT = {"grey": "gray", "colour": "color", "centre": "center"}
_SLOTS: dict[str, tuple[int, str]] = {
    **{word: (0, word) for word in SIZES},
    **{word: (1, word) for word in COLORS},
    **{word: (2, word) for word in MATERIALS},
    "big": (0, "large"),
    "tiny": (0, "small"),
    "metallic": (2, "metal"),
    "shiny": (2, "metal"),
    "matte": (2, "rubber"),
}
_NOUNS: dict[str, str | None] = {
    **{word: word for word in SHAPES},
    **{word + "s": word for word in SHAPES},
    "ball": "sphere",
    "block": "cube",
    "object": None,
    "thing": None,
}
_RELATIONS = {"left": "left", "right": "right", "front": "front", "behind": "behind"}
_REGIONS = {
    ("left", "side", "of", "the", "scene"): "left side",
    ("right", "side", "of", "the", "scene"): "right side",
    ("center", "of", "the", "scene"): "center",
}
# in order: the first rule with a cue word in the sentence applies
_CLEVR_CUES: tuple[tuple[str, frozenset[str]], ...] = (
    ("no_change", frozenset(("unchanged", "same", "identical", "nothing", "difference"))),
    ("move", frozenset(("moved", "place", "location", "position"))),
    ("drop", frozenset(("disappeared", "removed", "gone", "missing", "away", "longer"))),
    ("add", frozenset(("appeared", "added", "new", "newly"))),
)
_REPORT_CUES: tuple[tuple[str, frozenset[str]], ...] = (
    ("illumination", frozenset(("brighter", "darker"))),
    ("viewpoint", frozenset(("camera", "viewpoint"))),
    ("OCR", frozenset(("letter",))),
    ("counting", frozenset(("number",))),
    ("substitution", frozenset(("replaced",))),
    ("size", frozenset(("larger", "smaller"))),
    ("orientation", frozenset(("rotated", "turned"))),
    ("pose", frozenset(("moved",))),
    ("disappearance", frozenset(("left", "disappeared"))),
    ("removal", frozenset(("removed", "taken"))),
    ("addition", frozenset(("appeared", "added", "new"))),
    ("color", frozenset(("color", *COLORS))),
)
_DIRECTIONS = ("brighter", "darker", "larger", "smaller", "higher", "lower", "closer", "farther")


def _words(text: str) -> list[str]:
    return [_SPELT.get(word, word) for word in _WORDS.findall(text.lower())]


def _noun_phrases(words: list[str]) -> tuple[list[tuple[int, int, Attributes]], list[int]]:
    """Noun phrases as (first word, end, attributes), and the indices of all other words."""
    phrases: list[tuple[int, int, Attributes]] = []
    rest: list[int] = []
    start = 0
    while start < len(words):
        end = start
        slots: list[str | None] = [None] * 4
        while end < len(words) and (slot := _SLOTS.get(words[end])):
            slots[slot[0]] = slot[1]
            end += 1
        if end < len(words) and words[end] in _NOUNS:
            slots[3] = _NOUNS[words[end]]
            end += 1
            phrases.append((start, end, Attributes(*slots)))
        else:
            end = max(end, start + 1)
            rest.extend(range(start, end))
        start = end
    return phrases, rest


def _referring_part(words: list[str]) -> tuple[ParsedChange, list[str], list[Attributes]]:
    """Referring part of a sentence, the words outside of it, and the other noun phrases."""
    phrases, rest = _noun_phrases(words)
    region = None
    for pattern, name in _REGIONS.items():
        for i in range(len(words) - len(pattern) + 1):
            if tuple(words[i : i + len(pattern)]) == pattern:
                region = name
                rest = [j for j in rest if not i <= j < i + len(pattern)]
    relation = anchor = None
    others = [attributes for _, _, attributes in phrases[1:]]
    if len(phrases) > 1:
        between = [i for i in rest if phrases[0][1] <= i < phrases[1][0]]
        relation_indices = [i for i in between if words[i] in _RELATIONS]
        if relation_indices:
            relation, anchor = _RELATIONS[words[relation_indices[-1]]], others.pop(0)
            rest = [i for i in rest if i not in between]
    thing = phrases[0][2] if phrases else None
    return ParsedChange(None, thing, relation, anchor, region), [words[i] for i in rest], others


def _kind(words: list[str], cues: tuple[tuple[str, frozenset[str]], ...]) -> str | None:
    word_set = set(words)
    return next((kind for kind, cue in cues if word_set & cue), None)


def parse(caption: str) -> ParsedChange:
    """Parse one sentence of the modes `clevr_change` and `clevr_dc`.

    Args:
        caption: any string; fields that cannot be parsed are None.
    """
    words = _words(caption)
    part, rest, _ = _referring_part(words)
    value = next((_SLOTS[word][1] for word in reversed(rest) if word in _SLOTS and _SLOTS[word][0] in (1, 2)), None)
    kind = _kind(rest, _CLEVR_CUES)
    if kind is None and part.thing is None and "no" in rest and {"change", "changed", "changes"} & set(rest):
        kind = "no_change"
    if kind is None and value is not None:
        kind = "color" if value in COLORS else "texture"
    if kind not in ("color", "texture"):
        value = None
    return ParsedChange(kind, part.thing, part.relation, part.anchor, value=value)


def parse_report(caption: str) -> list[ParsedChange]:
    """Parse a report of the mode `omnidiff` into one claim per sentence.

    Args:
        caption: any string; sentences end with a full stop.
    """
    return [_parse_sentence(sentence) for sentence in caption.split(".") if _WORDS.search(sentence.lower())]


def _parse_sentence(sentence: str) -> ParsedChange:
    words = _words(sentence)
    part, rest, others = _referring_part(words)
    kind = _kind(rest, _REPORT_CUES)
    old = value = None
    replacement = None
    if kind == "OCR":
        upper = [word.upper() for word in words if word.upper() in LETTERS]
        old, value = (upper[0], upper[1]) if len(upper) > 1 else (None, upper[0] if upper else None)
    elif kind == "counting":
        number_words = [word for word in rest if word in NUMBERS]
        old, value = (
            (number_words[0], number_words[1])
            if len(number_words) > 1
            else (None, number_words[0] if number_words else None)
        )
    elif kind == "substitution":
        replacement = others[0] if others else None
    elif kind == "color":
        colors = [word for word in rest if word in COLORS]
        value = colors[-1] if colors else None
    elif kind == "viewpoint":
        value = next((word for word in rest if word in _DIRECTIONS or word in ("left", "right")), None)
    elif kind in ("illumination", "size"):
        value = next((word for word in rest if word in _DIRECTIONS), None)
    return ParsedChange(kind, part.thing, part.relation, part.anchor, part.region, old, value, replacement)
