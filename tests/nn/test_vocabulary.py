"""Vocabularies: encoding, decoding, and loading. Oracles: open_clip's and transformers' tokenizers."""

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


def test_words_are_sorted_by_count_then_alphabetically() -> None:
    vocabulary = Vocabulary.build(["b a a", "c a b"])
    assert vocabulary.words == [*SPECIALS, "a", "b", "c"]
    assert (PAD, BOS, EOS, UNK) == (0, 1, 2, 3)
    assert Vocabulary.build(["b a a", "c a b"], min_count=2).words == [*SPECIALS, "a", "b"]


def test_decode_restores_lower_cased_caption() -> None:
    vocabulary = Vocabulary.build(SENTENCES)
    for sentence in SENTENCES:
        ids = vocabulary.encode(sentence)
        assert ids[0] == BOS and ids[-1] == EOS
        assert vocabulary.decode(ids) == sentence.lower()


def test_unseen_words_are_unknown() -> None:
    vocabulary = Vocabulary.build(SENTENCES)
    assert vocabulary.encode("the zebra")[1:-1] == [vocabulary.words.index("the"), UNK]


def test_decoding_stops_at_the_end_token() -> None:
    vocabulary = Vocabulary.build(SENTENCES)
    ids = [BOS, vocabulary.words.index("red"), EOS, vocabulary.words.index("cube"), PAD]
    assert vocabulary.decode(ids) == "red"


@given(st.text(max_size=60))
def test_encode_of_decoded_text_equals_ids(text: str) -> None:
    vocabulary = Vocabulary.build([text])
    ids = vocabulary.encode(text)
    assert UNK not in ids
    assert vocabulary.encode(vocabulary.decode(ids)) == ids


def test_words_are_plain_strings_that_restore_the_vocabulary() -> None:
    vocabulary = Vocabulary.build(SENTENCES)
    assert type(vocabulary.words) is list and {type(word) for word in vocabulary.words} == {str}
    assert Vocabulary(vocabulary.words).encode(SENTENCES[1]) == vocabulary.encode(SENTENCES[1])


def test_rejects_invalid_word_lists() -> None:
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


def test_clip_vocabulary_equals_open_clip() -> None:
    import open_clip

    clip = load_vocabulary("clip")
    text = "The SHINY red cube's moved (left)."
    ids = clip.encode(text)
    assert len(clip) == 49408 and ids == open_clip.tokenize([text])[0, : len(ids)].tolist()
    assert (ids[0], ids[-1]) == (clip.special.bos, clip.special.eos) == (49406, 49407)
    assert clip.decode([*ids, *clip.encode("not this")[1:]]) == "the shiny red cube 's moved (left)."


def test_unknown_vocabulary_raises_config_error() -> None:
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
def test_bert_vocabulary_equals_transformers(bert: Path, text: str) -> None:
    from transformers import BertTokenizer

    tokenizer = BertTokenizer.from_pretrained(str(bert))
    assert load_vocabulary(str(bert)).encode(text) == tokenizer(text)["input_ids"]


def test_bert_vocabulary_decodes_and_groups_pieces(bert: Path) -> None:
    vocabulary = load_vocabulary(str(bert / "vocab.txt"))
    ids = vocabulary.encode("the cubes moved (left).")
    assert vocabulary.decode([*ids, *vocabulary.encode("red")]) == "the cubes moved (left)."
    assert vocabulary.grouped(ids[1:-1])[:3] == [("the", 1), ("cubes", 2), ("moved", 2)]
    assert [PIECES[index] for index in vocabulary.special.suppress_tokens] == ["[PAD]", "[CLS]", "[UNK]", "[MASK]"]
    restored = load_vocabulary(vocabulary.key)
    assert isinstance(restored, BertVocabulary) and restored.encode("red cubes") == vocabulary.encode("red cubes")


def test_rejects_files_that_are_not_bert_vocabularies(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"vocab\.txt.*does not exist"):
        load_vocabulary(str(tmp_path))
    (tmp_path / "vocab.txt").write_text("[PAD]\nred\n", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"lacks \[UNK\], \[CLS\], \[SEP\], \[MASK\]"):
        load_vocabulary(str(tmp_path))


def test_bert_vocabulary_restores_image_editing_request(shared: Path) -> None:
    records = json.loads((shared / "realdata/annotations/image_editing_request/test.json").read_text(encoding="utf-8"))
    captions = [text for record in records for text in record["sents"]]
    pieces = sorted({piece for text in captions for piece in re.findall(r"\w+|[^\w\s]", text.lower())})
    vocabulary = BertVocabulary([*BERT_SPECIALS, *pieces])
    is_restored = [ptb_tokenize(vocabulary.decode(vocabulary.encode(text))) == ptb_tokenize(text) for text in captions]
    assert len(captions) > 1000 and sum(is_restored) / len(captions) > 0.99
    assert sum(bool(re.search(r"\w['-]\w", text)) for text in captions) > 20, "captions with hyphens or apostrophes"


@pytest.mark.parametrize("text", ["the man's t-shirt isn't there, mid-air", "they've gone", "a well-lit room"])
def test_bert_vocabulary_joins_hyphens_and_clitics(text: str) -> None:
    pieces = sorted(set(re.findall(r"\w+|[^\w\s]", text)))
    vocabulary = BertVocabulary([*BERT_SPECIALS, *pieces])
    assert ptb_tokenize(vocabulary.decode(vocabulary.encode(text))) == ptb_tokenize(text)
