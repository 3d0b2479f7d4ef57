"""Captions and their edited versions: the lexicon, WordNet's files, and answers of a language model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.toy_stages import Canned

from lightning_idc.methods.img_diff.captions import LexiconEdits, PromptedEdits, changed_words, replace_noun
from lightning_idc.methods.img_diff.lexicon import CATEGORIES, Lexicon
from lightning_idc.synthesis.run import run
from lightning_idc.synthesis.sources import Sentences
from lightning_idc.utils.errors import DataError


def test_malformed_answers_are_counted(tmp_path: Path) -> None:
    caption = "A dog sleeps on the sofa."
    answers = {
        "A cat sleeps on the sofa.": None,
        '"A cat sleeps on the sofa."\nI chose a cat.': None,
        "Of course --- A cat sleeps on the sofa.</s>": None,
        "": "empty answer",
        caption: "no object replaced",
        "I replaced the dog with a cat.": "answer describes the edit",
        "Two birds fly high above the old stone bridge at night.": "too many words changed",
    }
    stage = PromptedEdits(Canned(list(answers)), max_changed_words=6)
    store = run(stage, Sentences([caption] * len(answers)), tmp_path / "a")
    assert [r.dropped and r.dropped["reason"] for r in store] == list(answers.values())
    assert store.record(0).facts["nouns"] == ["dog", "cat"]
    assert store.counts()[0] == 3


def test_lexicon_replaces_a_noun_by_one_of_its_class(tmp_path: Path) -> None:
    lexicon = Lexicon.builtin()
    assert set(lexicon.nouns) == set(CATEGORIES)
    for seed in range(20):
        edit = replace_noun("An apple lies there", lexicon, np.random.default_rng(seed))
        assert edit is not None
        (_, twin), (old, new) = edit
        assert old == "apple" and lexicon.category[new] == "fruit" and new in twin
        assert twin.startswith("An " if new[0] in "aeiou" else "A ")
        assert changed_words("An apple lies there", twin) == (old, new)
    edit = replace_noun("Two dogs", lexicon, np.random.default_rng(0))
    assert edit is not None and edit[0][1].endswith("s") and edit[1][0] == "dog"
    assert replace_noun("The sky is clear", lexicon, np.random.default_rng(0)) is None
    store = run(LexiconEdits(), Sentences(["A dog runs", "The sky is clear"]), tmp_path / "a")
    assert store.counts() == (1, {"no known noun": 1})


def test_letters_with_accents_are_parts_of_words() -> None:
    lexicon = Lexicon.builtin()
    assert replace_noun("A bowl of maní", Lexicon({"a": ["man", "dog"]}), np.random.default_rng(0)) is None
    assert changed_words("a jalapeño on a plate", "a tomato on a plate") == ("jalapeño", "tomato")
    assert changed_words("une chaise brûlée", "une étagère brûlée") == ("chaise", "étagère")
    edit = replace_noun("A café chair", lexicon, np.random.default_rng(0))
    assert edit is not None and edit[0][1].startswith("A café ")


def test_wordnets_files_are_read_by_class(tmp_path: Path) -> None:
    # the format of wndb(5WN): offset lex_filenum ss_type w_cnt word lex_id p_cnt [symbol offset pos source/target]
    names = list(CATEGORIES)
    lines, index = ["  1 a licence"], ["  1 a licence"]
    for number, name in enumerate(names, 1):
        lines.append(f"{number:08} 03 n 01 {name} 0 000 | a class")
        index.append(f"{name} n 1 0 1 0 {number:08}")
        for child in (1, 2):
            offset, word = 100 * number + child, f"{name.replace('_', '')}{'ab'[child - 1]}"
            lines.append(f"{offset:08} 03 n 01 {word} 0 001 @ {number:08} n 0000 | below")
            index.append(f"{word} n 1 1 @ 1 0 {offset:08}")
    lines.append("00009999 03 n 01 somebody 0 001 @i 00000002 n 0000 | an instance is no object")
    index.append("somebody n 1 1 @i 1 0 00009999")
    index.append("two_words n 1 1 @ 1 0 00000101")
    (tmp_path / "data.noun").write_text("\n".join(lines) + "\n")
    (tmp_path / "index.noun").write_text("\n".join(index) + "\n")
    lexicon = Lexicon.wordnet(tmp_path)
    assert lexicon.category["fruita"] == "fruit" and lexicon.category["livingthingb"] == "living_thing"
    assert "somebody" not in lexicon.category and "two_words" not in lexicon.category
    with pytest.raises(DataError, match=r"data\.noun"):
        Lexicon.wordnet(tmp_path / "nowhere")
