"""The English stemmer that Snowball calls Porter2, as published on snowballstem.org and as METEOR 1.5 uses it.

R1 is what follows the first consonant after a vowel, R2 is R1 of R1; most endings are only removed inside of them.
"""

from __future__ import annotations

from functools import lru_cache

_VOWELS = frozenset("aeiouy")
_WHOLE = {
    "skis": "ski", "skies": "sky", "dying": "die", "lying": "lie", "tying": "tie", "idly": "idl", "gently": "gentl",
    "ugly": "ugli", "early": "earli", "only": "onli", "singly": "singl",
    **{word: word for word in ("sky", "news", "howe", "atlas", "cosmos", "bias", "andes")},
}  # fmt: skip
_AFTER_PLURAL = frozenset(["inning", "outing", "canning", "herring", "earring", "proceed", "exceed", "succeed"])
_LONG_STARTS = ("gener", "commun", "arsen")
_DOUBLES = frozenset(["bb", "dd", "ff", "gg", "mm", "nn", "pp", "rr", "tt"])
_BEFORE_LI = frozenset("cdeghkmnrt")
# endings and what takes their place; of several the longest counts
_STEP_2 = {
    "tional": "tion", "enci": "ence", "anci": "ance", "abli": "able", "entli": "ent", "izer": "ize", "ization": "ize",
    "ational": "ate", "ation": "ate", "ator": "ate", "alism": "al", "aliti": "al", "alli": "al", "fulness": "ful",
    "ousli": "ous", "ousness": "ous", "iveness": "ive", "iviti": "ive", "biliti": "ble", "bli": "ble", "ogi": "og",
    "fulli": "ful", "lessli": "less", "li": "",
}  # fmt: skip
_STEP_3 = {
    "tional": "tion", "ational": "ate", "alize": "al", "icate": "ic", "iciti": "ic", "ical": "ic", "ful": "",
    "ness": "", "ative": "",
}  # fmt: skip
_STEP_4 = dict.fromkeys(
    [
        "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ism", "ate", "iti", "ous",
        "ive", "ize", "ion",
    ],
    "",
)  # fmt: skip


def _ending(word: str, endings: dict[str, str]) -> str | None:
    """The longest of the endings that the word has."""
    for size in range(min(7, len(word)), 0, -1):
        if word[-size:] in endings:
            return word[-size:]
    return None


def _region(word: str, start: int) -> int:
    """Where the region begins that follows the first consonant after a vowel."""
    for place in range(start + 1, len(word)):
        if word[place] not in _VOWELS and word[place - 1] in _VOWELS:
            return place + 1
    return len(word)


def _ends_short(word: str) -> bool:
    """Whether the word ends in a short syllable."""
    if len(word) == 2:
        return word[0] in _VOWELS and word[1] not in _VOWELS
    if len(word) < 3:
        return False
    before, vowel, last = word[-3], word[-2], word[-1]
    return before not in _VOWELS and vowel in _VOWELS and last not in _VOWELS and last not in "wxY"


def _plural(word: str) -> str:
    if word.endswith("sses"):
        return word[:-2]
    if word.endswith(("ied", "ies")):
        return word[:-2] if len(word) > 4 else word[:-1]
    if word.endswith(("us", "ss")) or not word.endswith("s"):
        return word
    return word[:-1] if any(letter in _VOWELS for letter in word[:-2]) else word


def _past(word: str, r1: int) -> str:
    for ending in ("eedly", "eed"):
        if word.endswith(ending):
            return word[: -len(ending)] + "ee" if len(word) - len(ending) >= r1 else word
    ending = next((ending for ending in ("ingly", "edly", "ing", "ed") if word.endswith(ending)), "")
    stem = word[: len(word) - len(ending)]
    if not ending or not any(letter in _VOWELS for letter in stem):
        return word
    if stem.endswith(("at", "bl", "iz")):
        return stem + "e"
    if stem[-2:] in _DOUBLES:
        return stem[:-1]
    return stem + "e" if len(stem) <= r1 and _ends_short(stem) else stem


def _derived(word: str, r1: int, r2: int) -> str:
    """Steps 2, 3 and 4."""
    ending = _ending(word, _STEP_2)
    if ending is not None and (place := len(word) - len(ending)) >= r1:
        allowed = {"ogi": "l", "li": _BEFORE_LI}.get(ending)
        if allowed is None or word[place - 1] in allowed:
            word = word[:place] + _STEP_2[ending]
    ending = _ending(word, _STEP_3)
    if ending is not None and (place := len(word) - len(ending)) >= (r2 if ending == "ative" else r1):
        word = word[:place] + _STEP_3[ending]
    ending = _ending(word, _STEP_4)
    place = len(word) - len(ending or "")
    if ending is not None and place >= r2 and (ending != "ion" or word[place - 1] in "st"):
        return word[:place]
    return word


@lru_cache(1 << 16)
def stem(word: str) -> str:
    """Stem of a word in lower case (Porter 2001, "The English (Porter2) stemming algorithm").

    Example:
        >>> stem("generously"), stem("moved"), stem("cubes")
        ('generous', 'move', 'cube')
    """
    if word in _WHOLE:
        return _WHOLE[word]
    if len(word) < 3:
        return word
    word = word.removeprefix("'")
    letters = list(word)
    for place, letter in enumerate(letters):
        if letter == "y" and (place == 0 or letters[place - 1] in _VOWELS):
            letters[place] = "Y"
    word = "".join(letters)
    start = next((len(start) for start in _LONG_STARTS if word.startswith(start)), None)
    r1 = _region(word, 0) if start is None else start
    r2 = _region(word, r1)
    for ending in ("'s'", "'s", "'"):
        if word.endswith(ending):
            word = word[: -len(ending)]
            break
    word = _plural(word)
    if word in _AFTER_PLURAL:
        return word
    word = _past(word, r1)
    if len(word) > 2 and word[-1] in "yY" and word[-2] not in _VOWELS:
        word = word[:-1] + "i"
    word = _derived(word, r1, r2)
    if word.endswith("e"):
        if len(word) > r2 or (len(word) > r1 and not _ends_short(word[:-1])):
            word = word[:-1]
    elif word.endswith("ll") and len(word) > r2:
        word = word[:-1]
    return word.replace("Y", "y")
