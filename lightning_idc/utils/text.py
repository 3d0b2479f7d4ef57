"""Captions as safe text: they come from models and from other people's files."""

from __future__ import annotations

import unicodedata

# controls, formats (among them those that turn the direction of writing), halves of surrogates, breaks of lines
_HIDDEN = frozenset(["Cc", "Cf", "Cs", "Zl", "Zp"])
# formats that belong to words: Persian, Hindi, emoji
_JOINERS = "\u200c\u200d"


def printable(text: str) -> str:
    """The text with its lines, and control characters as escapes: what others wrote must not steer a terminal.

    Example:
        >>> printable("two\\nlines \\x1b[2J")
        'two\\nlines \\\\x1b[2J'
    """
    return "".join(
        c.encode("unicode_escape").decode()
        if unicodedata.category(c) in _HIDDEN and c not in "\n\t" and c not in _JOINERS
        else c
        for c in text
    )


def encodable(text: str, encoding: str | None) -> str:
    """The text, with escapes for what an encoding lacks.

    Args:
        text: of any lines.
        encoding: of a stream; None for UTF-8.

    Example:
        >>> encodable("1.0 ± 0.2", "ascii")
        '1.0 \\\\xb1 0.2'
    """
    name = encoding or "utf-8"
    return text.encode(name, "backslashreplace").decode(name)


def markdown(text: str) -> str:
    """One line of Markdown in which the text is text: never markup, HTML or a link."""
    return "".join(f"&#{ord(c)};" if c in "<>&|`*[]\\" else c for c in plain(text))


def plain(text: str, encoding: str | None = None) -> str:
    """One line without control characters; what ``encoding`` lacks becomes a question mark.

    A caption must not move a terminal's cursor, nor end a test because a console knows no umlauts.
    """
    visible = "".join(" " if unicodedata.category(c) in _HIDDEN and c not in _JOINERS else c for c in text)
    line = " ".join(visible.split())
    return line if encoding is None else line.encode(encoding, "replace").decode(encoding)
