"""Statistics of captions, counted by hand."""

from __future__ import annotations

import pytest

from lightning_idc.data.statistics import caption_statistics, sentence_count, split_statistics
from lightning_idc.utils.errors import DataError

LONG = "a " * 20 + "dog."


def test_counts_by_hand() -> None:
    found = caption_statistics([["The cube moved. Nothing else did!", "no change"], [LONG], []])
    assert (found.pairs, found.captions) == (3, 3)
    assert found.words == 6 + 2 + 21
    assert found.sentences == 2 + 1 + 1
    # the cube moved nothing else did no change a dog
    assert found.vocabulary == 10
    assert found.long_captions == 1
    rows = dict(found.rows())
    assert rows["words per caption"] == "9.7" and rows["captions of more than 20 words"] == "33 %"


def test_twenty_words_are_not_more_than_twenty() -> None:
    assert caption_statistics([["a " * 20]]).long_captions == 0


@pytest.mark.parametrize(
    ("caption", "sentences"),
    [("", 0), ("no full stop", 1), ("One. Two.", 2), ("It is 2.5 m away.", 1), ("Really?! Yes", 2), ("...", 0)],
)
def test_sentences(caption: str, sentences: int) -> None:
    assert sentence_count(caption) == sentences


def test_splits_share_their_vocabulary() -> None:
    found = split_statistics({"train": [["a red cube"]], "test": [["a blue cube"], ["a red ball"]]})
    assert {split: (s.pairs, s.vocabulary) for split, s in found.items()} == {
        "train": (1, 3),
        "test": (2, 5),
        "all": (3, 5),
    }
    assert list(split_statistics({"train": [["x"]]})) == ["train"]


def test_nothing_to_count() -> None:
    with pytest.raises(DataError, match="no pairs"):
        caption_statistics([])
