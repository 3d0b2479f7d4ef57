"""Words to ids and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_idc.nn.vocabulary import BOS, EOS, PAD, SPECIALS, UNK, Vocabulary, load_vocabulary, words_of
from lightning_idc.pairs import PairError

SENTENCES = ["The small red cube moved.", "the red ball (left), isn't there!", "nothing changed"]


def test_ids_are_ordered_by_count_then_by_word() -> None:
    built = Vocabulary.build(["b a a", "c a b"])
    assert built.words == [*SPECIALS, "a", "b", "c"]
    assert (PAD, BOS, EOS, UNK) == (0, 1, 2, 3)
    assert Vocabulary.build(["b a a", "c a b"], min_count=2).words == [*SPECIALS, "a", "b"]


def test_captions_come_back_lower_cased_with_clean_spaces() -> None:
    built = Vocabulary.build(SENTENCES)
    for sentence in SENTENCES:
        ids = built.encode(sentence)
        assert ids[0] == BOS and ids[-1] == EOS
        assert built.decode(ids) == sentence.lower()


def test_words_never_seen_are_unknown() -> None:
    built = Vocabulary.build(SENTENCES)
    assert built.encode("the zebra")[1:-1] == [built.words.index("the"), UNK]


def test_decoding_stops_at_the_end_token() -> None:
    built = Vocabulary.build(SENTENCES)
    ids = [BOS, built.words.index("red"), EOS, built.words.index("cube"), PAD]
    assert built.decode(ids) == "red"


@given(st.text(max_size=60))
def test_any_text_is_stable_after_one_round(text: str) -> None:
    # oracle: a sentence that decode wrote is encoded to the ids that it was written from
    built = Vocabulary.build([text])
    ids = built.encode(text)
    assert UNK not in ids
    assert built.encode(built.decode(ids)) == ids


def test_words_survive_a_checkpoint() -> None:
    built = Vocabulary.build(SENTENCES)
    assert type(built.words) is list and {type(word) for word in built.words} == {str}
    assert Vocabulary(built.words).encode(SENTENCES[1]) == built.encode(SENTENCES[1])


def test_bad_word_lists_are_refused() -> None:
    with pytest.raises(PairError, match="starts with"):
        Vocabulary(["a", "b"])
    with pytest.raises(PairError, match="stand twice in the vocabulary: a"):
        Vocabulary([*SPECIALS, "a", "b", "a"])


def test_hyphens_and_apostrophes_stay_inside_words() -> None:
    assert words_of("Isn't the T-shirt's edge 3.5 px?") == [
        "isn't",
        "the",
        "t-shirt's",
        "edge",
        "3",
        ".",
        "5",
        "px",
        "?",
    ]


def test_clips_vocabulary_is_open_clips() -> None:
    import open_clip

    clip = load_vocabulary("clip")
    text = "The SHINY red cube's moved (left)."
    ids = clip.encode(text)
    assert len(clip) == 49408 and ids == open_clip.tokenize([text])[0, : len(ids)].tolist()
    assert (ids[0], ids[-1]) == (clip.special.bos, clip.special.eos) == (49406, 49407)
    assert clip.decode([*ids, *clip.encode("not this")[1:]]) == "the shiny red cube 's moved (left)."


def test_an_unknown_vocabulary_is_named() -> None:
    with pytest.raises(PairError, match="'bert'"):
        load_vocabulary("bert")
