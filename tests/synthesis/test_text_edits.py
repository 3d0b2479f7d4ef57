"""Edits of texts. Oracle: difflib, word by word and letter by letter."""

from __future__ import annotations

from difflib import SequenceMatcher

import numpy as np
import pytest

from lightning_idc.synthesis.web.operators import OPERATORS, TIERS, caption_of
from lightning_idc.synthesis.web.text_edits import MAX_WORDS, edit_text
from lightning_idc.utils.quotes import differing_words

TEXT = "Release  15.18 of (the) server\n  fixes 12 bugs, see https://a.example/E.20 and BELOW."
SEEDS = range(60)


def draws(tier: str, text: str = TEXT) -> list[str]:
    return [edit_text(text, tier, np.random.default_rng(seed)) for seed in SEEDS]  # type: ignore[arg-type]


@pytest.mark.parametrize("text", [TEXT, "a", "7", "\u2022", "Read more", "--- ."])
@pytest.mark.parametrize("tier", TIERS)
def test_every_edit_differs_and_leaves_words(tier: str, text: str) -> None:
    for new in draws(tier, text):
        assert new != text and new.split()
        old_words, new_words = differing_words(text, new)
        assert old_words and new_words and old_words != new_words


def test_hard_edits_change_one_glyph_of_one_word() -> None:
    kinds = set()
    for new in draws("hard"):
        ((tag, i1, i2, j1, j2),) = [
            op for op in SequenceMatcher(None, TEXT, new, False).get_opcodes() if op[0] != "equal"
        ]
        assert max(i2 - i1, j2 - j1) == 1 and len(TEXT.split()) == len(new.split())
        kinds.add((tag, TEXT[i1:i2].isdigit()))
    assert {("replace", True), ("replace", False), ("insert", False), ("delete", False)} <= kinds


def test_medium_edits_exchange_a_word_or_add_or_take_out_some() -> None:
    tags = set()
    for new in draws("medium"):
        words, others = TEXT.split(), new.split()
        ops = [op for op in SequenceMatcher(None, words, others, False).get_opcodes() if op[0] != "equal"]
        assert len(ops) <= 2 and sum(max(op[2] - op[1], op[4] - op[3]) for op in ops) <= MAX_WORDS
        tags |= {op[0] for op in ops}
        assert "\n" in new or len(others) < len(words), "white space stays as it is"
    assert tags == {"replace", "insert", "delete"}


def test_easy_edits_write_texts_of_about_the_same_length_anew() -> None:
    counts = [len(new.split()) for new in draws("easy", " ".join(["word"] * 40))]
    assert 20 < np.mean(counts) < 60 and max(len(new.split()) for new in draws("easy", "Home")) <= 2


def test_captions_quote_the_words_that_differ() -> None:
    element = {"text": TEXT, "tag": "p"}
    mutation = OPERATORS["text"].mutate(element, "hard", np.random.default_rng(2))
    old, new = differing_words(mutation.old, mutation.new)
    assert caption_of("text", element, mutation).endswith(f'has another text: "{new}" instead of "{old}"')
    assert differing_words("one two", "one and two") == ("one", "one and")
