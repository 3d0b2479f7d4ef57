"""Statistics of captions, counted by hand."""

from __future__ import annotations

import pytest

from lightning_idc.data.statistics import caption_statistics, sentence_count, split_statistics
from lightning_idc.utils.errors import DataError

LONG = "a " * 20 + "dog."


def test_counts_by_hand() -> None:
    statistics = caption_statistics([["The cube moved. Nothing else did!", "no change"], [LONG], []])
    assert (statistics.pairs, statistics.captions) == (3, 3)
    assert statistics.words == 6 + 2 + 21
    assert statistics.sentences == 2 + 1 + 1
    # the vocabulary: the cube moved nothing else did no change a dog
    assert statistics.vocabulary == 10
    assert statistics.long_captions == 1
    rows = dict(statistics.rows())
    assert rows["words per caption"] == "9.7" and rows["captions of more than 20 words"] == "33 %"


def test_caption_of_20_words_is_not_long() -> None:
    assert caption_statistics([["a " * 20]]).long_captions == 0


@pytest.mark.parametrize(
    ("caption", "sentences"),
    [("", 0), ("no full stop", 1), ("One. Two.", 2), ("It is 2.5 m away.", 1), ("Really?! Yes", 2), ("...", 0)],
)
def test_sentences(caption: str, sentences: int) -> None:
    assert sentence_count(caption) == sentences


def test_vocabulary_is_joint_over_splits() -> None:
    statistics = split_statistics({"train": [["a red cube"]], "test": [["a blue cube"], ["a red ball"]]})
    assert {split: (s.pairs, s.vocabulary) for split, s in statistics.items()} == {
        "train": (1, 3),
        "test": (2, 5),
        "all": (3, 5),
    }
    assert list(split_statistics({"train": [["x"]]})) == ["train"]


def test_no_pairs_is_an_error() -> None:
    with pytest.raises(DataError, match="at least one pair"):
        caption_statistics([])
