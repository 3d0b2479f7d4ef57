"""Escape untrusted text, such as captions from models and files, for terminals and Markdown."""

from __future__ import annotations

import re
import unicodedata

# control and format characters (including direction marks), surrogates, line and paragraph separators
_HIDDEN = frozenset(["Cc", "Cf", "Cs", "Zl", "Zp"])
# format characters within words: Persian, Hindi, emoji
_JOINERS = "\u200c\u200d"
_SCHEME = r"\b[A-Za-z][A-Za-z0-9+.-]+:/{1,2}"  # two letters at least, unlike the drives of Windows
_USER = re.compile(rf"({_SCHEME})[^/\s]*@")
_QUERY = re.compile(rf"({_SCHEME}[^\s?'\"]+\?)[^\s'\"]+")


def printable(text: str) -> str:
    """Escape control characters, except line breaks, so that untrusted text cannot control a terminal.

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


def hide_passwords(text: str) -> str:
    """Replace the user, the password and the query of every URL in a text with asterisks.

    Paths to which a URL was converted, with one slash, are included.

    Example:
        >>> hide_passwords("cannot open s3://me:secret@bucket/a and http://host/a@b")
        'cannot open s3://***@bucket/a and http://host/a@b'
        >>> hide_passwords("no file 'https:/host/a?signature=secret'")
        "no file 'https:/host/a?***'"
    """
    return _QUERY.sub(r"\1***", _USER.sub(r"\1***@", text))


def encodable(text: str, encoding: str | None) -> str:
    """Escape characters that an encoding lacks.

    Args:
        text: text of any number of lines.
        encoding: encoding of a stream; None for UTF-8.

    Example:
        >>> encodable("1.0 ± 0.2", "ascii")
        '1.0 \\\\xb1 0.2'
    """
    name = encoding or "utf-8"
    return text.encode(name, "backslashreplace").decode(name)


def markdown(text: str) -> str:
    """Escape text as one line of Markdown without markup, HTML or links."""
    return "".join(f"&#{ord(c)};" if c in "<>&|`*[]\\" else c for c in plain(text))


def plain(text: str, encoding: str | None = None) -> str:
    """Convert text to one line without control characters; question marks replace characters that ``encoding`` lacks.

    A caption must not move the cursor of a terminal, or crash a test on a console that is not UTF-8.
    """
    visible = "".join(" " if unicodedata.category(c) in _HIDDEN and c not in _JOINERS else c for c in text)
    line = " ".join(visible.split())
    return line if encoding is None else line.encode(encoding, "replace").decode(encoding)
