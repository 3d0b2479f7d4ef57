"""Implicit-change descriptions: each image described for itself, so that the change is read off the contrast.

NAMC, section 3.1.2 and appendix D: "The difference between the two images is that the first image {verb} [object
description], while the second image {verb} [object description]."
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lightning_idc.nn.vocabulary import word_spans, words_of
from lightning_idc.utils.sentences import sentence_end

_VERBS = """
    is describes depicts illustrates displays demonstrates introduces has positions starts places discusses promotes
    takes converts adopts presents reveals incorporates aims refers offers focuses suggests attributes specifies
    captures symbolizes advertises conveys features appears consists remains shows lists explains shifts indicates
    provides contains exhibits labels sets looks states showcases creates centers
"""
VERBS = tuple(_VERBS.split())
"""The predefined descriptive verbs of appendix D.2."""

_NOTHING_SAID = """
    a an the it this that one something anything there image nothing not no n't never is are was were be been do does
    did has have had can could will would may might must isn't aren't wasn't weren't doesn't don't didn't hasn't haven't
"""
_EMPTY = frozenset(_NOTHING_SAID.split())
"""Placeholders, auxiliaries and negations; a description made of these alone says nothing about an object."""
_HEADS = tuple(
    # the paper prints the template with "the two images", and its four generations without "the"
    tuple(f"the difference between {images} is that the first image".split())
    for images in ("the two images", "two images")
)
_SECOND = ("while", "the", "second", "image")
WITHIN_LIMIT = "an answer that ends within the model's limit of tokens"
_QUOTES = "\"'\u201c\u201d\u2018\u2019"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an answer is not used as an implicit-change description.

    Args:
        reason: one of a few, by which refused answers are counted.
        found: the part of the answer that it is refused for.
        expected: in its place.
    """

    reason: str
    found: str
    expected: str


def compose(first: str, second: str, verbs: tuple[str, str] = ("shows", "shows")) -> str:
    """Fill the template with the object descriptions of both images."""
    return (
        f"The difference between the two images is that the first image {verbs[0]} {first}, "
        f"while the second image {verbs[1]} {second}."
    )


def component_spans(words: Sequence[str]) -> tuple[range, range] | None:
    """Where the two object descriptions stand in a description, or None if it does not follow the template.

    This alone decides what follows the template; a template with a bracket left in it was not filled in. Whether the
    sentence ends is not asked, since a captioner's may be cut at its greatest length; `object_descriptions` asks it.

    Args:
        words: of the whole description, as `words_of` gives them; an empty span where nothing is said.
    """
    head = next((head for head in _HEADS if tuple(words[: len(head)]) == head), None)
    if head is None or "[" in words:
        return None
    first = len(head) + 1  # behind the verb
    if len(words) < first or words[first - 1] not in VERBS:
        return None
    for second in range(first, len(words) - len(_SECOND)):
        middle = second + len(_SECOND)
        if tuple(words[second:middle]) == _SECOND and words[middle] in VERBS:
            places = (first, second), (middle + 1, len(words))
            before, after = (range(start, _without_marks(words, start, end)) for start, end in places)
            return before, after
    return None


def _without_marks(words: Sequence[str], start: int, end: int) -> int:
    while end > start and words[end - 1] in (",", ".", ";"):
        end -= 1
    return end


def components(description: str) -> tuple[str, str] | None:
    """The two object descriptions, lower-cased, or None if the description does not follow the template."""
    words = words_of(description)
    spans = component_spans(words)
    if spans is None:
        return None
    first, second = (" ".join(words[span.start : span.stop]) for span in spans)
    return first, second


def component_places(text: str) -> tuple[slice, slice] | None:
    """Characters of the two object descriptions, or None if the text does not follow the template."""
    places = word_spans(text)
    spans = component_spans([text[place].lower() for place in places])
    if spans is None:
        return None
    first, second = (_characters(places, span, len(text)) for span in spans)
    return first, second


def _characters(places: Sequence[slice], words: range, end: int) -> slice:
    start = places[words.start].start if words.start < len(places) else end
    return slice(start, places[words[-1]].stop if words else start)


def unquoted(text: str) -> str:
    """The text without white space and a pair of quotes around it."""
    text = text.strip()
    if text[:1] in _QUOTES:
        text = text[1:].strip()
        text = text[:-1].strip() if text[-1:] in _QUOTES else text
    return text


def object_descriptions(answer: str, cut_off: bool = False) -> tuple[str, str] | Refusal:
    """The two object descriptions of a model's answer as written, or why it is refused.

    An answer is one sentence in the template, with its full stop; quotes around it are allowed, anything else is not.
    Refused as well are descriptions one side of which has nothing but negations and auxiliary verbs (appendix D.2).

    Args:
        answer: of a model.
        cut_off: whether the model was stopped by its limit of tokens.

    Example:
        >>> said = "The difference between two images is that the first image shows a dog, while the second image shows"
        >>> object_descriptions(f"{said} a cat.")
        ('a dog', 'a cat')
        >>> object_descriptions(f"{said} a cat. Note: both are animals.").reason
        'goes on behind the sentence'
    """
    text = unquoted(answer)
    line = " ".join(text.split())
    if cut_off:
        return Refusal("cut off", line, WITHIN_LIMIT)
    places, end = component_places(text), sentence_end(text)
    if places is None or (end is not None and end < places[1].start):
        return Refusal("not in the template", line, "one sentence in the template of Appendix D.2")
    rest = "" if end is None else " ".join(text[end:].split())
    if rest:
        return Refusal("goes on behind the sentence", rest, "nothing behind the description")
    if end is None:
        return Refusal("cut off", line, "a full stop at the end")
    first, second = (" ".join(text[place].split()) for place in places)
    for side, description in (("first", first), ("second", second)):
        if not says_something(description):
            return Refusal(f"says nothing about the {side} image", line, "more than negations and auxiliaries")
    return first, second


def says_something(description: str) -> bool:
    """Whether any word is more than a negation, an auxiliary or a placeholder."""
    return any(word not in _EMPTY for word in re.findall(r"[a-z0-9']+", description.lower()))


def repetitions(texts: Iterable[str]) -> dict[str, float | int]:
    """Table 14: how many descriptions there are, how many different ones, and the ratio of repetitions."""
    counts = Counter(texts)
    total, unique = counts.total(), len(counts)
    return {
        "total": total,
        "unique": unique,
        "repetition": total - unique,
        "repetition_ratio": round((total - unique) / total, 4) if total else 0.0,
    }
