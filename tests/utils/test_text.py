"""Text from untrusted sources is escaped when it is printed to a terminal or written into Markdown."""

from __future__ import annotations

import pytest

from lightning_idc.utils.text import markdown, plain, printable

HOSTILE = {
    "title of the window": "\x1b]0;owned\x07",
    "clear the screen": "\x1b[2J",
    "eight-bit escape": "\x9b2J",
    "carriage return": "12 pairs\rno problems",
    "backspaces": "bad\b\b\bok",
    "turned round": "a\u202egnp.exe",
    "half of a surrogate": "\ud800",
    "separators of lines": "a\u2028b\x85c",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_nothing_steers_a_terminal(text: str) -> None:
    for shown in (printable(text), plain(text)):
        assert not set(shown) & set("\x1b\x07\x08\x9b\r\u202e\ud800\u2028\x85")
        shown.encode("utf-8")


def test_words_and_lines_stay_as_they_are() -> None:
    text = "naïve 日本 😀 \u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645\n  two\tcells"
    assert printable(text) == text


@pytest.mark.parametrize("text", ["[x](javascript:alert(1))", "![x](http://a/b)", "<b>", "a|b", "`x`", "*x*", "&lt;"])
def test_markdown_is_text(text: str) -> None:
    shown = markdown(text)
    assert not set(shown) & set("<>|`*[]")
    import html

    assert html.unescape(shown) == text
