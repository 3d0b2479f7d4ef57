"""Whether a text says that nothing changed, in whatever words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache

from lightning_idc.metrics.tokenizer import ptb_tokenize

CHANGE = "change"
"""Type of a pair that changed in a way that nobody names."""
NO_CHANGE = "no_change"
"""Type of a pair that did not change."""
_THINGS = r"(?:changes?|differences?|modifications?|alterations?|variations?|edits?|updates?)"
_SIDES = (
    r"(?:images?|pictures?|photos?|photographs?|pages?|screenshots?|scenes?|frames?|views?|"
    r"they|these|both|everything|it)"
)
_SAYS = [
    # no visible difference; without any change; not a single modification
    rf"\b(?:no(?!\s+(?:more|fewer|less)\s+than)|without(?: any)?|not any|not a(?: single)?|zero)\s+(?:[\w-]+\s+){{0,4}}"
    rf"{_THINGS}\b",
    r"\b(?:no|nothing)\s+(?:\w+\s+)?differ\w*\b",
    # there aren't any changes; there do not seem to be any differences
    rf"(?:\bnot\b|n't\b)\s+(?:[\w-]+\s+){{0,4}}any\s+(?:[\w-]+\s+){{0,3}}{_THINGS}\b",
    # nothing has changed, none of it differs
    r"\b(?:nothing|none)\b(?!\s+else)[^.;]*\b(?:chang\w+|differ\w*|modified|altered|moved|new)\b",
    # cannot see a difference
    rf"\b(?:can ?not|can't|could not|couldn't|do not|don't|did not|unable to)\s+(?:\w+\s+){{0,2}}"
    rf"(?:see|find|spot|detect|identify|notice)\s+(?:\w+\s+){{0,3}}{_THINGS}\b",
    # the images are identical; both look the same; everything is the same as before
    rf"\b{_SIDES}\b[^.;]{{0,60}}\b(?:identical|unchanged|indistinguishable|alike)\b",
    rf"\b{_SIDES}\b[^.;]{{0,60}}\b(?:the|exact) same(?=\s*(?:$|as before|in both|scene|image|picture|photo|"
    r"as the (?:first|other|previous|original)(?:\s+(?:one|image|picture|photo|scene))?\W*$))",
    r"^\s*(?:the )?same (?:picture|image|photo|scene)s?\W*$",
    # did not change; has not changed
    rf"\b{_SIDES}\b[^.;]{{0,40}}(?:\bnot|n't)\s+(?:been\s+)?(?:chang\w+|differ\w*|altered|modified)\b",
    r"^\s*(?:identical|unchanged|the same|same|none)\W*$",
]
_NOTHING = re.compile("|".join(f"(?:{pattern})" for pattern in _SAYS), re.IGNORECASE)
# what takes it back
_EXCEPT = re.compile(
    r"\b(?:except|(?<!without )exception|but|other than|apart from|aside from|outside of|besides|however|although|"
    r"while|only difference|else)\b",
    re.IGNORECASE,
)
# not the same, no longer quite identical
_DENIED = re.compile(
    r"(?:\bnot|n't|\bno longer|\bnever|\bhardly|\bfar from)\s+(?:\w+\s+){0,2}"
    r"(?:identical|unchanged|indistinguishable|alike|same)\b",
    re.IGNORECASE,
)
# beside another sentence it says that this one was a change
_OTHERS = re.compile(
    rf"\b(?:no|not|any)\s+(?:other|further|additional|more)\s+(?:[\w-]+\s+){{0,3}}{_THINGS}\b", re.IGNORECASE
)
_REST = re.compile(r"^\W*(?:nothing|everything) else\b", re.IGNORECASE)
_CHANGED = re.compile(
    r"\b(?:added|removed|moved|gone|appear(?:s|ed)?|disappear(?:s|ed)?|missing|new|replaced|larger|smaller|bigger|"
    r"became|becomes|turned|now|longer|darker|brighter|changed (?:from|to|its|color|colour|position))\b",
    re.IGNORECASE,
)


def says_nothing_changed(text: str) -> bool:
    """Whether a text says that two images do not differ.

    Sentences that describe what both images show do not matter; one that tells a change does.

    Args:
        text: in English.

    Example:
        >>> says_nothing_changed("There is no visible difference between the two images.")
        True
        >>> says_nothing_changed("The scene is the same, but the red car is gone.")
        False
    """
    straight = text.replace("\u2019", "'")
    every = [sentence for sentence in re.split(r"[.;!?\n]+", straight) if sentence.strip()]
    sentences = [sentence for sentence in every if not _OTHERS.search(sentence)] or every
    nothing = [_says_nothing(sentence) for sentence in sentences]
    told = any(_CHANGED.search(sentence) for sentence, same in zip(sentences, nothing, strict=True) if not same)
    return any(nothing) and not told


def _says_nothing(sentence: str) -> bool:
    if not _NOTHING.search(sentence) or _EXCEPT.search(sentence) or _DENIED.search(sentence):
        return False
    # "the cube is gone, no other changes" tells one
    beside, others = _OTHERS.subn("", sentence)
    return not (others and _CHANGED.search(beside))


def no_change_rule(sentences: Iterable[str]) -> Callable[[str], bool]:
    """The rule by which captions are taken to say that nothing changed: in known sentences, or in other words.

    Args:
        sentences: known to say so, as an annotator's or a captioner's own; a caption is one of them but for case and
            punctuation, or :func:`says_nothing_changed` knows it.

    Example:
        >>> rule = no_change_rule(["As before."])
        >>> rule("as before"), rule("The images are identical."), rule("the red cube moved")
        (True, True, False)
    """
    known = {tuple(ptb_tokenize(text)) for text in sentences}

    @cache  # captioners say the same of many pairs
    def says_no_change(caption: str) -> bool:
        return tuple(ptb_tokenize(caption)) in known or says_nothing_changed(caption)

    return says_no_change


def list_differences(texts: Iterable[str]) -> list[str]:
    """Differences that texts name: a line or a sentence each, without numbers and bullets.

    Sentences that say nothing changed are none; nor is any difference listed twice.

    Args:
        texts: captions or references of a pair.

    Example:
        >>> list_differences(["1. The car is gone.\\n2. A man appeared. Nothing else changed."])
        ['The car is gone', 'A man appeared']
    """
    found: dict[str, None] = {}
    for text in texts:
        # numbers and bullets first, since "1." would end a sentence
        bare = re.sub(r"^\s*(?:[-*\u2022]|\(?\d{1,2}[.):])\s+", "", text, flags=re.MULTILINE)
        for part in re.split(r"\n+|(?<=[\w)\"'])[.;!](?:\s+|$)", bare):
            # and those within a line, of which a full stop leaves the number alone
            said = re.sub(r"^\(?\d{1,2}(?:[.):]\s+|\)?$)", "", part.strip())
            if re.search(r"\w", said) and not says_nothing_changed(said) and not _REST.match(said):
                found.setdefault(said)
    return list(found)
