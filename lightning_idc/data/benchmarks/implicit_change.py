"""Implicit-change descriptions: each image described for itself, so that the change is read off the contrast.

NAMC, section 3.1.2 and appendix D: "The difference between the two images is that the first image {verb} [object
description], while the second image {verb} [object description]."
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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
    a an the it this that something anything there not no is are was were be been does do did has have had
    isn't aren't wasn't weren't doesn't don't didn't , . ;
"""
_EMPTY = frozenset(_NOTHING_SAID.split())
"""A description made of nothing but these says nothing about an object."""


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


def rejected(description: str) -> str | None:
    """Why a description is of no use (appendix D.2), or None where it is.

    Rejected are descriptions that do not follow the template, and those of which one side has nothing but negations and
    auxiliary verbs ("the second image is not"). The paper loses 0.2 % in this way.
    """
    found = components(description)
    if found is None:
        return "does not follow the template"
    for side, text in zip(("first", "second"), found, strict=True):
        if not set(text.split()) - _EMPTY:
            return f"says nothing about the {side} image"
    return None


@dataclass(frozen=True, slots=True)
class Repetition:
    """How often sentences repeat each other (the columns of NAMC's Table 14).

    Args:
        total: sentences.
        unique: different ones among them.
    """

    total: int
    unique: int

    @property
    def repeated(self) -> int:
        """Sentences that another one equals already."""
        return self.total - self.unique

    @property
    def percent(self) -> float:
        """Share of them, x100."""
        return 100 * self.repeated / self.total if self.total else 0.0


def repetition(descriptions: Iterable[str]) -> Repetition:
    """Count sentences and different sentences."""
    texts = list(descriptions)
    return Repetition(len(texts), len(set(texts)))
