"""Swap left and right, or top and bottom, in captions of flipped pairs where these words are directions."""

from __future__ import annotations

import re

_OTHER = {"left": "right", "right": "left"}
_SIDE = re.compile(r"\b(left|right)(?=(?:-?most|-?hand|-?wards?|s)?\b)", re.IGNORECASE)
# "the left image" and "the picture on the right" refer to one of the two images, which a flip does not exchange
_NOUN = r"(?:image|picture|photo|photograph|pic|frame|view|panel|shot)s?"
_QUALIFIES_IMAGE = re.compile(rf"(?:[-\s]*(?:most|hand|side))*[-\s]+{_NOUN}\b", re.IGNORECASE)
_OF_IMAGE = re.compile(rf"\b{_NOUN} (?:on|at|to) (?:the )?$", re.IGNORECASE)
# in "rotate the image to the right", however, right is a direction
_TURNED = re.compile(
    rf"\b(?:rotat|tilt|turn|flip|mov|shift)\w*(?: (?:the|this|that|my|whole|entire)){{0,2}} {_NOUN} to (?:the )?$",
    re.IGNORECASE,
)
# "has left", "left the scene" and "is left." are verbs; "right next to" and "left behind" are not directions either
_HAS = re.compile(r"(?:\b(?:has|have|had|having|been|being|already|just|who)|['’]ve) $", re.IGNORECASE)
_IS = re.compile(r"\b(?:is|are|was|were) $", re.IGNORECASE)
_CLAUSE_ENDS = re.compile(r"\s*(?:[.,;:!?]|$)")
_NO_SIDE = re.compile(
    r" (?:the|a(?! bit\b(?! of\b))|an|his|her|their|its|this|next|above|below|behind|beside|under|underneath|beneath|"
    r"after|before|by|near|now|away|there|here|where|inside|outside|between|across|in front|in the middle|on top)\b",
    re.IGNORECASE,
)
_POINTS = re.compile(
    r"\b(?:the|to|on|at|in|from|far|very|more|further|farther|bottom|top|upper|lower|middle|cent(?:er|re)|front|back|rear|"
    r"and|or|(?:mov|turn|shift|slid|fac|driv|walk|go|runn?|look|point|head|rotat|push)\w*) $",
    re.IGNORECASE,
)


def swap_sides(text: str) -> str:
    """Swap left and right where they are directions, also in "leftmost" and "right-hand", preserving case.

    The decision depends on neighbouring words that do not change, so swapping twice restores the text.
    """

    def swap(match: re.Match[str]) -> str:
        word = match.group(1)
        if not _is_direction(text[: match.start()], text[match.end() :]):
            return word
        other = _OTHER[word.lower()]
        return other.upper() if word.isupper() else other.capitalize() if word[0].isupper() else other

    return _SIDE.sub(swap, text)


_HEIGHTS = {"top": "bottom", "bottom": "top", "upper": "lower", "lower": "upper", "above": "below", "below": "above"}
_HEIGHT = re.compile(rf"\b({'|'.join(_HEIGHTS)})(?=(?:-?most)?\b)", re.IGNORECASE)


def swap_heights(text: str) -> str:
    """Swap top and bottom, upper and lower, above and below, preserving case.

    Only for captions with positions in the image plane, such as those of maps or boards: in photographs, "on top of"
    and "below the table" refer to the scene, which a vertical flip does not change.
    """

    def swap(match: re.Match[str]) -> str:
        word, other = match.group(1), _HEIGHTS[match.group(1).lower()]
        return other.upper() if word.isupper() else other.capitalize() if word[0].isupper() else other

    return _HEIGHT.sub(swap, text)


def _is_direction(before: str, after: str) -> bool:
    """Whether a "left" or "right" between two texts is a direction in the image."""
    if _QUALIFIES_IMAGE.match(after) or (_OF_IMAGE.search(before) and not _TURNED.search(before)):
        return False
    if after[:4].lower() == " of ":
        return True
    verb = _HAS.search(before) or (_IS.search(before) and _CLAUSE_ENDS.match(after))
    return not verb and not (_NO_SIDE.match(after) and not _POINTS.search(before))
