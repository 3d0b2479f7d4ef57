"""Implicit-change descriptions: each image is described separately, and the change follows from the contrast.

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

_NON_OBJECT_WORDS = """
    a an the it this that one something anything there image nothing not no n't never is are was were be been do does
    did has have had can could will would may might must isn't aren't wasn't weren't doesn't don't didn't hasn't haven't
"""
_NON_OBJECTS = frozenset(_NON_OBJECT_WORDS.split())
"""Placeholders, auxiliaries and negations; a description of only these words does not describe an object."""
_HEADS = tuple(
    # the template in the paper has "the two images", but its four examples omit "the"
    tuple(f"the difference between {images} is that the first image".split())
    for images in ("the two images", "two images")
)
_SECOND = ("while", "the", "second", "image")
WITHIN_LIMIT = "an answer within the model's token limit"
_QUOTES = "\"'\u201c\u201d\u2018\u2019"


@dataclass(frozen=True, slots=True)
class Rejection:
    """Rejection of a model's answer as an implicit-change description.

    Args:
        reason: short category, by which rejected answers are counted.
        excerpt: offending part of the answer.
        expected: description of a valid answer.
    """

    reason: str
    excerpt: str
    expected: str


def compose(first: str, second: str, verbs: tuple[str, str] = ("shows", "shows")) -> str:
    """Fill the template with the object descriptions of both images."""
    return (
        f"The difference between the two images is that the first image {verbs[0]} {first}, "
        f"while the second image {verbs[1]} {second}."
    )


def component_spans(words: Sequence[str]) -> tuple[range, range] | None:
    """Return the word spans of both object descriptions; None if the description does not follow the template.

    This function defines the template; a remaining bracket means that the template was not filled in. The final full
    stop is not required, since a captioner's output may be truncated; `object_descriptions` requires it.

    Args:
        words: words of the full description, as returned by `words_of`.

    Returns:
        The spans of both descriptions; a span is empty if there is no description.
    """
    head = next((head for head in _HEADS if tuple(words[: len(head)]) == head), None)
    if head is None or "[" in words:
        return None
    first = len(head) + 1  # index after the verb
    if len(words) < first or words[first - 1] not in VERBS:
        return None
    for second in range(first, len(words) - len(_SECOND)):
        middle = second + len(_SECOND)
        if tuple(words[second:middle]) == _SECOND and words[middle] in VERBS:
            bounds = (first, second), (middle + 1, len(words))
            before, after = (range(start, _without_marks(words, start, end)) for start, end in bounds)
            return before, after
    return None


def _without_marks(words: Sequence[str], start: int, end: int) -> int:
    while end > start and words[end - 1] in (",", ".", ";"):
        end -= 1
    return end


def components(description: str) -> tuple[str, str] | None:
    """Extract both object descriptions in lower case; None if the description does not follow the template."""
    words = words_of(description)
    spans = component_spans(words)
    if spans is None:
        return None
    first, second = (" ".join(words[span.start : span.stop]) for span in spans)
    return first, second


def component_slices(text: str) -> tuple[slice, slice] | None:
    """Return the character slices of both object descriptions; None if the text does not follow the template."""
    word_slices = word_spans(text)
    spans = component_spans([text[word_slice].lower() for word_slice in word_slices])
    if spans is None:
        return None
    first, second = (_characters(word_slices, span, len(text)) for span in spans)
    return first, second


def _characters(word_slices: Sequence[slice], words: range, end: int) -> slice:
    start = word_slices[words.start].start if words.start < len(word_slices) else end
    return slice(start, word_slices[words[-1]].stop if words else start)


def unquoted(text: str) -> str:
    """Remove surrounding white space and quotes."""
    text = text.strip()
    if text[:1] in _QUOTES:
        text = text[1:].strip()
        text = text[:-1].strip() if text[-1:] in _QUOTES else text
    return text


def object_descriptions(answer: str, is_truncated: bool = False) -> tuple[str, str] | Rejection:
    """Extract both object descriptions, in their original case, from a model's answer, or reject it.

    A valid answer is one sentence in the template with a full stop; only quotes around it are allowed. A description
    that consists of negations and auxiliary verbs is rejected as well (appendix D.2).

    Args:
        answer: answer of the model.
        is_truncated: whether the model reached its token limit.

    Example:
        >>> text = "The difference between two images is that the first image shows a dog, while the second image shows"
        >>> object_descriptions(f"{text} a cat.")
        ('a dog', 'a cat')
        >>> object_descriptions(f"{text} a cat. Note: both are animals.").reason
        'text after the sentence'
    """
    text = unquoted(answer)
    line = " ".join(text.split())
    if is_truncated:
        return Rejection("truncated", line, WITHIN_LIMIT)
    slices, end = component_slices(text), sentence_end(text)
    if slices is None or (end is not None and end < slices[1].start):
        return Rejection("not in the template", line, "one sentence in the template of Appendix D.2")
    rest = "" if end is None else " ".join(text[end:].split())
    if rest:
        return Rejection("text after the sentence", rest, "no text after the description")
    if end is None:
        return Rejection("truncated", line, "a full stop at the end")
    first, second = (" ".join(text[part].split()) for part in slices)
    for side, description in (("first", first), ("second", second)):
        if not names_object(description):
            return Rejection(f"no object in the {side} image", line, "more than negations and auxiliaries")
    return first, second


def names_object(description: str) -> bool:
    """Whether a description has a word other than negations, auxiliaries and placeholders."""
    return any(word not in _NON_OBJECTS for word in re.findall(r"[a-z0-9']+", description.lower()))


def repetitions(texts: Iterable[str]) -> dict[str, float | int]:
    """Count all and distinct descriptions, and compute the ratio of repetitions (Table 14)."""
    counts = Counter(texts)
    total, unique = counts.total(), len(counts)
    return {
        "total": total,
        "unique": unique,
        "repetition": total - unique,
        "repetition_ratio": round((total - unique) / total, 4) if total else 0.0,
    }
