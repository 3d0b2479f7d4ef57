"""Penn Treebank tokens as caption scoring uses them, without Java.

Follows what Stanford's PTBTokenizer (3.4.1, ``-lowerCase``) makes of captions, minus the punctuation tokens that
COCO's evaluation removes. Each caption is one unit: a carriage return or U+2028 inside it cannot move the captions
after it to another image, as it does when captions are passed to Java line by line.
"""

from __future__ import annotations

import re
from functools import lru_cache

# tokens that COCO's evaluation removes; it compares after lower-casing, so -lrb- and its kin stay
PUNCTUATION = frozenset(
    ["''", "'", "``", "`", '"', ".", "?", "!", ",", ":", "-", ";", "…", "“", "”", "‘", "’", "–", "—"]
)
_BRACKETS = {"(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-"}

# words of two tokens that are written as one
_JOINED = {
    "cannot": ("can", "not"),
    "gonna": ("gon", "na"),
    "gotta": ("got", "ta"),
    "wanna": ("wan", "na"),
    "lemme": ("lem", "me"),
    "gimme": ("gim", "me"),
}
# abbreviations keep their full stop, at the end of a sentence too
_ABBREVIATIONS = (
    "mr|mrs|ms|dr|drs|prof|sr|jr|st|ste|mt|ft|gen|gov|sen|rep|rev|hon|lt|col|sgt|capt|cmdr|messrs|mme|mlle|"
    "jan|feb|mar|apr|jun|jul|aug|sep|sept|oct|nov|dec|inc|ltd|corp|bros|co|cos|univ|dept|est|ph|"
    "etc|vs|v|al|cf|ave|blvd|rd|ct|bldg|penn|ariz|calif|colo|conn|fla|ind|mich|minn|okla|tenn|tex|va|wis|ky"
)

_TOKEN = re.compile(
    rf"""
      (?P<url>(?:https?://|www\.)[^\s"]*[\w/])
    | (?P<acronym>(?<![\w.])[a-z](?:\.[a-z])+\.?(?!\w))                 # u.s.  t.v  p.m.
    | (?P<short>\b(?:{_ABBREVIATIONS})\.(?!\w))
    | (?P<initial>\b(?-i:[A-Z])\.(?!\w)(?=.*\w))                                # J. Fox, a sign with a P.
    | (?P<numbered>\bno\.(?=\s*\d))
    | (?P<price>\$(?=\.?\d))
    | (?P<time>\d+:\d+(?=[ap]m\b))
    | (?P<number>[-+]?(?:\d+(?:[,.:/]\d+)*|\.\d+(?:[,.]\d+)*)(?:-\d+)*(?!\w|-\w|['’]))
    | (?P<elided>['’](?:till?|n|em)\b['’]?)
    | (?P<french>\b[dlo]['’](?=\w)\w+(?:-\w+)*|\bdunkin['’](?!\w))
    | (?P<company>\b(?-i:[A-Z]{{1,2}}&[A-Z])\b|\bm&m\b(?!['’]))
    | (?P<not>n['’]t\b)
    | (?P<clitic>['’](?:s|m|d|re|ve|ll)\b)
    | (?P<word>(?:(?!n['’]t\b)[^\W])+(?:[-/.@](?=[^\W_])(?:(?!n['’]t\b)\w)+)*(?:\.(?=[;,]))?)
    | (?P<marks>[?!]{{2,}}|>+|<+)
    | (?P<runs>\.{{2,}}|-{{2,}})
    | (?P<other>\S)
    """,
    re.VERBOSE | re.IGNORECASE,
)
_PLAIN = re.compile(r"[A-Za-z ]*[a-z]\.?\Z")
_SHORT_WORDS = frozenset(_ABBREVIATIONS.split("|"))


def _scan(text: str) -> list[str]:
    tokens: list[str] = []
    for match in _TOKEN.finditer(text):
        token = match.group().lower().replace("’", "'")
        if match.lastgroup == "runs" or token in PUNCTUATION:
            continue
        tokens.extend(_JOINED.get(token) or (_BRACKETS.get(token, token),))
    return tokens


@lru_cache(maxsize=1 << 18)
def _cached(text: str) -> tuple[str, ...]:
    text = text.strip()
    # nearly all captions are plain words with one full stop at the end
    if _PLAIN.match(text):
        words = text.removesuffix(".").lower().split()
        if words[-1] not in _SHORT_WORDS and _JOINED.keys().isdisjoint(words):
            return tuple(words)
    return tuple(_scan(text))


def ptb_tokenize(text: str) -> list[str]:
    """Lower-cased tokens of a caption without punctuation."""
    return list(_cached(text))
