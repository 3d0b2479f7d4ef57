"""Recognition of captions that say nothing changed, and of the differences that a caption lists."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache

from lightning_idc.metrics.tokenizer import ptb_tokenize

CHANGE = "change"
"""Change type of a changed pair if its type is not known."""
NO_CHANGE = "no_change"
"""Change type of an unchanged pair."""
_CHANGE_NOUNS = r"(?:changes?|differences?|modifications?|alterations?|variations?|edits?|updates?)"
_SUBJECTS = (
    r"(?:images?|pictures?|photos?|photographs?|pages?|screenshots?|scenes?|frames?|views?|"
    r"they|these|both|everything|it)"
)
_NO_CHANGE_PATTERNS = [
    # no visible difference; without any change; not a single modification
    rf"\b(?:no(?!\s+(?:more|fewer|less)\s+than)|without(?: any)?|not any|not a(?: single)?|zero)\s+(?:[\w-]+\s+){{0,4}}"
    rf"{_CHANGE_NOUNS}\b",
    r"\b(?:no|nothing)\s+(?:\w+\s+)?differ\w*\b",
    # there aren't any changes; there do not seem to be any differences
    rf"(?:\bnot\b|n't\b)\s+(?:[\w-]+\s+){{0,4}}any\s+(?:[\w-]+\s+){{0,3}}{_CHANGE_NOUNS}\b",
    # nothing has changed, none of it differs
    r"\b(?:nothing|none)\b(?!\s+else)[^.;]*\b(?:chang\w+|differ\w*|modified|altered|moved|new)\b",
    # cannot see a difference
    rf"\b(?:can ?not|can't|could not|couldn't|do not|don't|did not|unable to)\s+(?:\w+\s+){{0,2}}"
    rf"(?:see|find|spot|detect|identify|notice)\s+(?:\w+\s+){{0,3}}{_CHANGE_NOUNS}\b",
    # the images are identical; both look the same; everything is the same as before
    rf"\b{_SUBJECTS}\b[^.;]{{0,60}}\b(?:identical|unchanged|indistinguishable|alike)\b",
    rf"\b{_SUBJECTS}\b[^.;]{{0,60}}\b(?:the|exact) same(?=\s*(?:$|as before|in both|scene|image|picture|photo|"
    r"as the (?:first|other|previous|original)(?:\s+(?:one|image|picture|photo|scene))?\W*$))",
    r"^\s*(?:the )?same (?:picture|image|photo|scene)s?\W*$",
    # did not change; has not changed
    rf"\b{_SUBJECTS}\b[^.;]{{0,40}}(?:\bnot|n't)\s+(?:been\s+)?(?:chang\w+|differ\w*|altered|modified)\b",
    r"^\s*(?:identical|unchanged|the same|same|none)\W*$",
]
_NO_CHANGE = re.compile("|".join(f"(?:{pattern})" for pattern in _NO_CHANGE_PATTERNS), re.IGNORECASE)
# words after which a sentence names a change after all
_EXCEPTION = re.compile(
    r"\b(?:except|(?<!without )exception|but|other than|apart from|aside from|outside of|besides|however|although|"
    r"while|only difference|else)\b",
    re.IGNORECASE,
)
# not the same, no longer quite identical
_NEGATION = re.compile(
    r"(?:\bnot|n't|\bno longer|\bnever|\bhardly|\bfar from)\s+(?:\w+\s+){0,2}"
    r"(?:identical|unchanged|indistinguishable|alike|same)\b",
    re.IGNORECASE,
)
# "no other changes" implies that another sentence names a change
_NO_OTHER_CHANGE = re.compile(
    rf"\b(?:no|not|any)\s+(?:other|further|additional|more)\s+(?:[\w-]+\s+){{0,3}}{_CHANGE_NOUNS}\b", re.IGNORECASE
)
_NOTHING_ELSE = re.compile(r"^\W*(?:nothing|everything) else\b", re.IGNORECASE)
_CHANGE_VERB = re.compile(
    r"\b(?:added|removed|moved|gone|appear(?:s|ed)?|disappear(?:s|ed)?|missing|new|replaced|larger|smaller|bigger|"
    r"became|becomes|turned|now|longer|darker|brighter|changed (?:from|to|its|color|colour|position))\b",
    re.IGNORECASE,
)


def says_nothing_changed(text: str) -> bool:
    """Whether a text says that two images do not differ.

    Sentences that only describe both images are ignored; a sentence that names a change makes the result False.

    Args:
        text: English text.

    Example:
        >>> says_nothing_changed("There is no visible difference between the two images.")
        True
        >>> says_nothing_changed("The scene is the same, but the red car is gone.")
        False
    """
    ascii_quotes = text.replace("\u2019", "'")
    all_sentences = [sentence for sentence in re.split(r"[.;!?\n]+", ascii_quotes) if sentence.strip()]
    sentences = [sentence for sentence in all_sentences if not _NO_OTHER_CHANGE.search(sentence)] or all_sentences
    is_no_change = [_says_nothing(sentence) for sentence in sentences]
    names_change = any(
        _CHANGE_VERB.search(sentence)
        for sentence, no_change in zip(sentences, is_no_change, strict=True)
        if not no_change
    )
    return any(is_no_change) and not names_change


def _says_nothing(sentence: str) -> bool:
    if not _NO_CHANGE.search(sentence) or _EXCEPTION.search(sentence) or _NEGATION.search(sentence):
        return False
    # "the cube is gone, no other changes" names a change
    remainder, num_others = _NO_OTHER_CHANGE.subn("", sentence)
    return not (num_others and _CHANGE_VERB.search(remainder))


def no_change_rule(sentences: Iterable[str]) -> Callable[[str], bool]:
    """A function that decides whether a caption says that nothing changed.

    Args:
        sentences: known sentences of the data; a caption equals one of them up to case and punctuation, or
            :func:`says_nothing_changed` recognises it.

    Example:
        >>> rule = no_change_rule(["As before."])
        >>> rule("as before"), rule("The images are identical."), rule("the red cube moved")
        (True, True, False)
    """
    known_tokens = {tuple(ptb_tokenize(text)) for text in sentences}

    @cache  # captioners repeat sentences
    def says_no_change(caption: str) -> bool:
        return tuple(ptb_tokenize(caption)) in known_tokens or says_nothing_changed(caption)

    return says_no_change


def list_differences(texts: Iterable[str]) -> list[str]:
    """Differences named in texts, one per line or sentence, without numbers and bullets.

    Sentences that say nothing changed are skipped, and repeated differences are listed once.

    Args:
        texts: captions or references of a pair.

    Example:
        >>> list_differences(["1. The car is gone.\\n2. A man appeared. Nothing else changed."])
        ['The car is gone', 'A man appeared']
    """
    differences: dict[str, None] = {}
    for text in texts:
        # remove numbers and bullets first, since "1." would end a sentence
        without_bullets = re.sub(r"^\s*(?:[-*\u2022]|\(?\d{1,2}[.):])\s+", "", text, flags=re.MULTILINE)
        for part in re.split(r"\n+|(?<=[\w)\"'])[.;!](?:\s+|$)", without_bullets):
            # numbers within a line, which a full stop separates from their item
            sentence = re.sub(r"^\(?\d{1,2}(?:[.):]\s+|\)?$)", "", part.strip())
            if re.search(r"\w", sentence) and not says_nothing_changed(sentence) and not _NOTHING_ELSE.match(sentence):
                differences.setdefault(sentence)
    return list(differences)
