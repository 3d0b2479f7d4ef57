"""Implicit-change descriptions: each image described for itself, so that the change is read off the contrast.

NAMC, section 3.1.2 and appendix D: "The difference between the two images is that the first image {verb} [object
description], while the second image {verb} [object description]."
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from lightning_idc.core.vocabulary import words_of

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
_ANY_VERB = "|".join(VERBS)
# the paper prints the template with "the two images", and its four generations without "the"
_FORM = re.compile(
    rf"the difference between (?:the )?two images is that the first image (?:{_ANY_VERB})\s+(?P<first>.+?),?\s*"
    rf"while the second image (?:{_ANY_VERB})\s+(?P<second>.+?)\s*\.?",
    re.IGNORECASE | re.DOTALL,
)


def compose(first: str, second: str, verbs: tuple[str, str] = ("shows", "shows")) -> str:
    """Fill the template with the object descriptions of both images."""
    return (
        f"The difference between the two images is that the first image {verbs[0]} {first}, "
        f"while the second image {verbs[1]} {second}."
    )


def component_spans(words: Sequence[str]) -> tuple[range, range] | None:
    """Where the two object descriptions stand in a description, or None if it does not follow the template.

    Args:
        words: of the whole description, as `words_of` gives them.
    """
    first = _after(words, ("the", "first", "image"), 0)
    second = None if first is None else _after(words, ("while", "the", "second", "image"), first)
    if first is None or second is None:
        return None
    middle = second - len(("while", "the", "second", "image", "shows"))
    return range(first, _without_marks(words, first, middle)), range(second, _without_marks(words, second, len(words)))


def _after(words: Sequence[str], phrase: tuple[str, ...], start: int) -> int | None:
    """Place after the first ``phrase`` that a descriptive verb follows."""
    for end in range(start + len(phrase), len(words)):
        if tuple(words[end - len(phrase) : end]) == phrase and words[end] in VERBS:
            return end + 1
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


def in_template(line: str) -> re.Match[str] | None:
    """Match whose groups ``first`` and ``second`` are the object descriptions; None where the template is not followed.

    Args:
        line: the whole description, with one space between words.
    """
    match = _FORM.fullmatch(line)
    return None if match is None or "[" in match.group() else match  # with a bracket it was not filled in


def object_descriptions(answer: str) -> tuple[str, str] | None:
    """The two object descriptions of a model's answer as written; None where it is not in the template.

    Args:
        answer: of a model; quotes around it are allowed, anything else is not.

    Example:
        >>> object_descriptions("The difference between two images is that the first image shows a dog, "
        ...                     "while the second image shows a cat.")
        ('a dog', 'a cat')
    """
    match = in_template(" ".join(answer.split()).strip("'\" "))
    return None if match is None else (match["first"].strip(), match["second"].strip())


def says_something(description: str) -> bool:
    """Whether any word is more than a negation, an auxiliary or a placeholder."""
    return any(word not in _EMPTY for word in re.findall(r"[a-z0-9']+", description.lower()))


def rejected(description: str) -> str | None:
    """Why a description is not usable (appendix D.2), or None where it is.

    Rejected are descriptions that do not follow the template, and those of which one side has nothing but negations and
    auxiliary verbs ("the second image is not"). The paper loses 0.2 % in this way.
    """
    found = components(description)
    if found is None:
        return "does not follow the template"
    for side, text in zip(("first", "second"), found, strict=True):
        if not says_something(text):
            return f"says nothing about the {side} image"
    return None


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
