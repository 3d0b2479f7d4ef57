"""Words to ids and back."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_idc.metrics.tokenizer import ptb_tokenize
from lightning_idc.nn.vocabulary import (
    BERT_SPECIALS,
    BOS,
    EOS,
    PAD,
    SPECIALS,
    UNK,
    BertVocabulary,
    Vocabulary,
    load_vocabulary,
    words_of,
)
from lightning_idc.utils.errors import CheckpointError, ConfigError

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
    with pytest.raises(ConfigError, match="starts with"):
        Vocabulary(["a", "b"])
    with pytest.raises(ConfigError, match="words are repeated in the vocabulary: a"):
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
    with pytest.raises(ConfigError, match="'bert'"):
        load_vocabulary("bert")


PIECES = [
    "[PAD]",
    "[unused0]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "the",
    "red",
    "cube",
    "mov",
    "##ed",
    "##s",
    "(",
    ")",
]
PIECES += [".", ",", "left", "cafe", "'", "s"]


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("text", ["The RED cubes moved, (left).", "the café's zebra moved", "", "red  cube\u4e2d"])
def test_berts_vocabulary_is_that_of_transformers(bert: Path, text: str) -> None:
    from transformers import BertTokenizer

    theirs = BertTokenizer.from_pretrained(str(bert))
    ours = load_vocabulary(str(bert))
    assert ours.encode(text) == theirs(text)["input_ids"]


def test_berts_words_are_made_of_pieces_and_come_back(bert: Path) -> None:
    found = load_vocabulary(str(bert / "vocab.txt"))
    ids = found.encode("the cubes moved (left).")
    assert found.decode([*ids, *found.encode("red")]) == "the cubes moved (left)."
    assert found.grouped(ids[1:-1])[:3] == [("the", 1), ("cubes", 2), ("moved", 2)]
    assert [PIECES[index] for index in found.special.suppress_tokens] == ["[PAD]", "[CLS]", "[UNK]", "[MASK]"]
    again = load_vocabulary(found.key)
    assert isinstance(again, BertVocabulary) and again.encode("red cubes") == found.encode("red cubes")


def test_a_file_that_is_not_berts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"vocab\.txt.*does not exist"):
        load_vocabulary(str(tmp_path))
    (tmp_path / "vocab.txt").write_text("[PAD]\nred\n", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"missing: \[UNK\], \[CLS\], \[SEP\], \[MASK\]"):
        load_vocabulary(str(tmp_path))


def test_captions_of_image_editing_request_come_back_from_berts_pieces(shared: Path) -> None:
    found = json.loads((shared / "realdata/annotations/image_editing_request/test.json").read_text(encoding="utf-8"))
    captions = [text for record in found for text in record["sents"]]
    pieces = sorted({piece for text in captions for piece in re.findall(r"\w+|[^\w\s]", text.lower())})
    vocabulary = BertVocabulary([*BERT_SPECIALS, *pieces])
    same = [ptb_tokenize(vocabulary.decode(vocabulary.encode(text))) == ptb_tokenize(text) for text in captions]
    assert len(captions) > 1000 and sum(same) / len(captions) > 0.99
    assert sum(bool(re.search(r"\w['-]\w", text)) for text in captions) > 20, "the captions hold such words"


@pytest.mark.parametrize("text", ["the man's t-shirt isn't there, mid-air", "they've gone", "a well-lit room"])
def test_berts_words_are_put_together_again(text: str) -> None:
    pieces = sorted(set(re.findall(r"\w+|[^\w\s]", text)))
    vocabulary = BertVocabulary([*BERT_SPECIALS, *pieces])
    assert ptb_tokenize(vocabulary.decode(vocabulary.encode(text))) == ptb_tokenize(text)
