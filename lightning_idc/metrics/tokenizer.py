"""ptb_tokenize: the Penn Treebank tokens of caption scoring, without Java.

The tokens equal those of Stanford's PTBTokenizer (3.4.1, ``-lowerCase``) on captions, without the punctuation tokens
that COCO's evaluation removes; the rules were derived from that program's output, see README.md. Each caption is
tokenised separately: a carriage return or U+2028 inside it cannot move later captions to another image, as it does when
captions are passed to Java line by line.
"""

from __future__ import annotations

import re

# tokens that COCO's evaluation removes; it compares after lower-casing, so -lrb- and similar tokens remain
_REMOVED = frozenset(["''", "'", "``", "`", '"', ".", "?", "!", ",", ":", ";", "-", "--", "---", "----"])
_REWRITTEN = {
    "(": "-lrb-",
    ")": "-rrb-",
    "[": "-lsb-",
    "]": "-rsb-",
    "{": "-lcb-",
    "}": "-rcb-",
    "£": "#",
    "€": "$",
    "¢": "cents",
    "½": "1/2",
    "¼": "1/4",
    "¾": "3/4",
    "⅓": "1/3",
    "⅔": "2/3",
    "&amp;": "&",
    "&lt;": "<",
    "&gt;": ">",
}
# within longer tokens: smileys, rows of quotes
_INSIDE = str.maketrans({"(": "-lrb-", ")": "-rrb-", "“": "``", "”": "''", "‘": "`"})
_SPLIT = {
    "cannot": ("can", "not"),
    "gonna": ("gon", "na"),
    "gotta": ("got", "ta"),
    "wanna": ("wan", "na"),
    "lemme": ("lem", "me"),
    "gimme": ("gim", "me"),
    "'tis": ("'t", "is"),
    "'twas": ("'t", "was"),
}
_REWRITTEN_SIGNS = [sign for sign in _REWRITTEN if not sign.isascii()]
# abbreviations that always keep their full stop
_ABBREVIATIONS = (
    "adj|adm|adv|al|alex|apr|ariz|assoc|asst|aug|ave|bancorp|bhd|bldg|blvd|brig|bros|calif|capt|cf|cie|cmdr|co|col|"
    "colo|comdr|conn|corp|cos|cpl|ct|dak|dec|dept|det|dr|drs|esq|est|etc|ext|feb|fla|fri|ft|ga|gen|gov|hon|inc|ind|"
    "insp|jan|jos|jr|jul|jun|kan|kans|ky|lieut|lt|ltd|maj|mar|md|messrs|mich|minn|mlle|mme|mo|mon|mont|mr|mrs|ms|"
    "msgr|mt|neb|nev|nov|oct|okla|penn|pfc|ph|plc|pres|prof|pvt|rd|rep|reps|rev|rt|sen|sens|sep|sept|sgt|sq|sr|st|"
    "ste|supt|tel|tenn|thu|thurs|tue|tues|univ|va|vs|vt|wed|wis|wisc|wm|wyo"
)
# abbreviations that a capital distinguishes from a common word
_CAPITAL_ABBREVIATIONS = "Ark|ARK|Del|DEL|Ill|ILL|La|LA|Mass|MASS|Miss|MISS|Ore|ORE|Pa|PA|Tex|TEX|Wash|WASH"
# abbreviations before a number
_NUMBERED = "art|ca|fig|figs|no|nos|op|pp|prop"
# a single letter's full stop ends the sentence before these, otherwise it belongs to the letter
_SENTENCE_STARTS = (
    "A|About|According|After|An|As|At|But|Earlier|He|Her|Here|However|If|In|It|Last|Many|More|Now|Once|One|Other|"
    "Our|She|Since|So|Some|Such|That|The|Their|Then|There|These|They|This|We|What|When|While|Yet|You"
)
_STARTERS = frozenset(_SENTENCE_STARTS.split("|"))

# Python's \w takes fractions and raised digits for letters, and takes combining accents for none
_NEITHER = r"\u00b2\u00b3\u00b9\u00bc-\u00be\u2070-\u209c\u2150-\u218b"
_LETTER = rf"[^\W\d_{_NEITHER}]"
_LETTERS = rf"(?:[^\W\d_{_NEITHER}]|[\u0300-\u036f\u00ad])+"
_SIGN = rf"(?:[^\W_{_NEITHER}]|[\u0300-\u036f\u00ad])"
_ALNUM = rf"{_SIGN}+"
# signs that Stanford's lexer knows; it drops others, such as emoji
_KNOWN_SIGN = (
    r"[!-~\u00a1\u00a5-\u00a9\u00ac\u00ae-\u00b9\u00bf\u00d7\u00f7\u02c2-\u02df\u0384-\u0387\u2016\u2017\u201a"
    r"\u201e-\u2023\u2030-\u2038\u203b\u203e-\u2042\u2044\u2070-\u208e\u20a4\u2100-\u2426\u2440-\u2bff\u3001\u3002"
    r"\u3012\u30fb\uff01-\uffee]"
)
_WORD = rf"{_LETTER}{_SIGN}*"
_DASHED = r"(?:-[A-Za-z]+){0,2}"
_APOS = r"['’]"


def _rules() -> list[re.Pattern[str]]:
    """Patterns of tokens, one group each; text after the group is context and counts towards the length."""
    sources = [
        rf"(?i:((?:{'|'.join(_SPLIT)})))(?!{_LETTER})",
        # do n't, and n't after a word
        rf"(?i:((?:{_LETTERS})?(?!n)[^\W\d_])n['’`]t)",
        rf"(?i:(n['’`]t))(?!{_LETTER})",
        # dog 's
        rf"(?i:({_LETTERS}){_APOS}(?:[sdm]|re|ve|ll))",
        r"(?i:('(?:[sdm]|re|ve|ll))(?:[^A-Za-z]|\Z)|(’(?:[sdm]|re|ve|ll)))",
        rf"({_ALNUM}(?:_{_ALNUM})*)",
        # abbreviations, initials, U.S., and words run together at a full stop
        rf"((?i:{_ABBREVIATIONS})\.|(?:{_CAPITAL_ABBREVIATIONS})\.|pty\.|Pty\.|mfg\.|Mfg\.|[A-Za-z]\.)",
        rf"((?i:{_NUMBERED})\.)\d",
        rf"({_WORD}(?:\.{_WORD})*\.)[,;:]",
        r"([A-Za-z](?:\.[A-Za-z])+\.)(?![A-Za-z])",
        rf"({_WORD}(?:[.!?]{_WORD})+)",
        # numbers
        r"([-+]?(?:\d*(?:[.,:]\d+)+|\d+))",
        # two-story, 3,000-foot, and/or
        rf"((?:[dolDOL]{_APOS})?{_SIGN}(?:{_SIGN}|[_.,]){{0,60}}(?:-(?:(?:[A-Za-z]\.){{2,}}|(?:{_SIGN}|_(?={_SIGN}))+))+)",
        rf"({_ALNUM}{_DASHED}(?:/{_ALNUM}{_DASHED}){{1,2}})",
        # words with an apostrophe inside or at an end
        rf"([A-HJ-XZndlo]{_APOS}{_LETTER}{_WORD})",
        rf"({_LETTERS}(?<=[aeiouyAEIOUY])(?<={_LETTER}{_LETTER}){_APOS}[aeiouA-Z](?:{_LETTERS})?)",
        rf"(?i:({_APOS}n{_APOS}|'n\Z|’n|[ldj]{_APOS}|dunkin{_APOS}|somethin{_APOS}|ol{_APOS}|{_APOS}em|{_APOS}till?|{_APOS}cause))",
        rf"(?i:(c{_APOS}mon|e{_APOS}er|s{_APOS}mores|ev{_APOS}ry|li{_APOS}l|nat{_APOS}l|nor{_APOS}easter|o{_APOS}o))",
        rf"({_APOS}[2-9]0s)",
        r"(')[A-Za-z]\S",
        rf"([yY]{_APOS}){_LETTER}",
        # addresses and tags
        r"(https?://[^\s\"<>|(){}]+[^\s\"<>|.!?(){},-])",
        r"((?:www\.(?:[^\s\"<>|.!?(){},]+\.)+[A-Za-z]{2,4}|(?:[^\s\"`'<>|!?(){},-_$]{1,60}\.){1,9}(?:com|net|org|edu))"
        r"(?:/[^\s\"<>|()]+[^\s\"<>|.!?(){},-])?)",
        r"([A-Za-z0-9][^\s\"<>|()]{0,60}@(?:[^\s\"<>|().]+\.)*[^\s\"<>|().]+)",
        r"([A-Za-z0-9]+(?:\.[A-Za-z0-9]+)*\.(?i:png|jpe?g|gif|bmp|html?|txt|pdf|docx?|zip|xml|csv|py|java|mp3|mov|exe))",
        r"(@[A-Za-z_][A-Za-z0-9_]*|\#[A-Za-z]+)",
        # M&M; C++; US$
        r"([A-Z]+(?:(?:[+&]|&amp;)[A-Z]+)+|[cC]\+\+|[cCfF]\#|[A-Z]*\$)",
        r"([<>]?[:;=][-o*']?[()DPdpO\\{@|\[\]])(?![A-Za-z0-9])",
        r"(&(?i:amp|lt|gt|quot|\#\d+|[a-z]+);|\(\d{2,3}\)-?\d{3,4}-?\d{3,5}|</?[A-Za-z!?][^>\s]*>)",
        r"([?!]+|-+|''|``|<+|>+|_+|\*+|\#+|@+|\.+|[“”‘’]+)",
        # a sign that is a token, or one that is skipped
        rf"({_KNOWN_SIGN}|[{''.join(_REWRITTEN_SIGNS)}])|.",
    ]
    return [re.compile(source) for source in sources]


_RULES = _rules()
# nearly all words have at most a comma or a full stop after them
_PLAIN_WORD = re.compile(r"([A-Za-z]{2,})[.,]?\Z")
_TAG = re.compile(r"</?[A-Za-z!?][^>]*>")
_INITIAL = re.compile(r"(?<![A-Za-z0-9.])[A-Za-z]\.\Z")
_FIXED = frozenset([*_ABBREVIATIONS.split("|"), *_CAPITAL_ABBREVIATIONS.lower().split("|"), "pty", "mfg", *_SPLIT])
_BEFORE_NUMBERS = frozenset(_NUMBERED.split("|"))
_MAX_CACHED, _MAX_CACHED_LENGTH = 1 << 18, 40
_cache: dict[str, tuple[str, ...]] = {}


def _tokens(chunk: str) -> tuple[str, ...]:
    """Tokens of a text without spaces: at each position the longest match of any rule, the earlier rule of equals."""
    easy = _PLAIN_WORD.match(chunk)
    if easy and (word := easy.group(1).lower()) not in _FIXED:
        return (word,)
    tokens: list[str] = []
    position = 0
    while position < len(chunk):  # the lookahead of rules is bounded, so long garbage takes linear time
        matches = [match for rule in _RULES if (match := rule.match(chunk, position))]
        best = max(matches, key=re.Match.end)
        if best.lastindex is None:
            position = best.end()
            continue
        token, position = best.group(best.lastindex).lower(), best.end(best.lastindex)
        if token in _SPLIT:
            tokens.extend(_SPLIT[token])
            continue
        token = _REWRITTEN.get(token, token.replace("\u00ad", ""))
        if token and not token[0].isalnum():
            token = token.translate(_INSIDE)
        if token.endswith(("’s", "’d", "’m", "’re", "’ve", "’ll", "n’t")) or not token.strip("’'`"):
            token = token.replace("’", "'")
        if token and token not in _REMOVED and token.strip("."):
            tokens.append(token)
    return tuple(tokens)


def _cached_tokens(chunk: str) -> tuple[str, ...]:
    tokens = _tokens(chunk)
    if len(chunk) <= _MAX_CACHED_LENGTH:
        if len(_cache) >= _MAX_CACHED:
            _cache.clear()
        _cache[chunk] = tokens
    return tokens


def clear_cache() -> None:
    """Clear the cache of words, for measurements of speed."""
    _cache.clear()


def _with_context(chunks: list[str]) -> list[str]:
    """Tokens where a chunk's full stop depends on the next chunk."""
    tokens: list[str] = []
    for chunk, following in zip(chunks, [*chunks[1:], ""], strict=True):
        chunk_tokens = _cache.get(chunk)
        if chunk_tokens is None:
            chunk_tokens = _cached_tokens(chunk)
        if chunk[-1] == "." and chunk_tokens:
            if _INITIAL.search(chunk) and (not following or following in _STARTERS):
                chunk_tokens = (*chunk_tokens[:-1], chunk_tokens[-1].rstrip("."))
            elif chunk[:-1].lower() in _BEFORE_NUMBERS and following[:1].isdigit():
                chunk_tokens = (chunk.lower(),)
        tokens += chunk_tokens
    return tokens


def _without_tags(text: str) -> list[str]:
    tokens: list[str] = []
    chunks = text.split()
    if "." in text and (chunks[-1][-1] != "." or len(chunks[-1]) < 4 or text.count(".") > 1):
        return _with_context(chunks)
    for chunk in chunks:
        chunk_tokens = _cache.get(chunk)
        tokens += _cached_tokens(chunk) if chunk_tokens is None else chunk_tokens
    return tokens


def ptb_tokenize(text: str) -> list[str]:
    """Lower-cased tokens of a caption without punctuation."""
    if "\u200b" in text:
        text = text.replace("\u200b", " ")
    if "<" not in text:
        return _without_tags(text)
    tokens: list[str] = []
    position = 0
    for tag in _TAG.finditer(text):
        tokens += _without_tags(text[position : tag.start()])
        tokens += tag.group().lower().split()
        position = tag.end()
    return tokens + _without_tags(text[position:])
