"""Vocabularies of captioners without a Hugging Face tokenizer: word lists, and the sub-words of CLIP and BERT.

`load_vocabulary` restores one from the list of words, or the name, that a checkpoint stores.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from lightning_idc.utils.errors import CheckpointError, ConfigError

PAD, BOS, EOS, UNK = 0, 1, 2, 3
SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>")
CLIP = "clip"
"""Name of CLIP's vocabulary of sub-words, used in place of a list of words."""
BERT_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
BERT_FILE = "vocab.txt"


class SpecialIds(NamedTuple):
    """Ids of special tokens, as decoding needs them.

    Args:
        pad: padding.
        bos: begin of a caption.
        eos: end of a caption.
        suppress_tokens: ids that are never generated.
        stops: ids that end a generated caption; ``eos`` alone when empty.
        mask: id that is read in place of a masked word.
    """

    pad: int = PAD
    bos: int = BOS
    eos: int = EOS
    suppress_tokens: tuple[int, ...] = (PAD, BOS, UNK)
    stops: tuple[int, ...] = ()
    mask: int = UNK

    @property
    def ends(self) -> tuple[int, ...]:
        """Ids that end a generated caption."""
        return self.stops or (self.eos,)


_TOKEN = re.compile(r"\w+(?:['’\-]\w+)*|[^\w\s]")
_SPACE_BEFORE = re.compile(r"\s+([.,;:!?%)\]])")
_SPACE_AFTER = re.compile(r"([(\[])\s+")


def words_of(text: str) -> list[str]:
    """Lower-cased words and punctuation marks of a sentence."""
    return _TOKEN.findall(text.lower())


def word_spans(text: str) -> list[slice]:
    """Character spans of the words and punctuation marks of a sentence."""
    return [slice(*match.span()) for match in _TOKEN.finditer(text)]


class Vocabulary:
    """Maps words to ids and back; ids 0 to 3 are padding, begin, end and unknown.

    Args:
        words: all words, the four special ones first.

    Raises:
        ConfigError: the special words are not the first ones, or a word is repeated.
    """

    special = SpecialIds()

    def __init__(self, words: Sequence[str]) -> None:
        if tuple(words[: len(SPECIALS)]) != SPECIALS:
            raise ConfigError(f"a vocabulary starts with {list(SPECIALS)}; found {list(words[:4])}")
        if len(set(words)) != len(words):
            repeated = [word for word, count in Counter(words).items() if count > 1]
            raise ConfigError(f"words are repeated in the vocabulary: {', '.join(repeated[:5])}")
        self.words = list(words)
        self._ids = {word: index for index, word in enumerate(self.words)}

    @classmethod
    def build(cls, captions: Iterable[str], min_count: int = 1) -> Vocabulary:
        """Vocabulary of the words that occur at least ``min_count`` times, most frequent first."""
        counts = Counter(word for caption in captions for word in words_of(caption))
        words = sorted((word for word, count in counts.items() if count >= min_count), key=lambda w: (-counts[w], w))
        return cls([*SPECIALS, *words])

    def extended(self, captions: Iterable[str], min_count: int = 1) -> Vocabulary:
        """This vocabulary, followed by the words that it lacks and that occur at least ``min_count`` times."""
        new = [word for word in Vocabulary.build(captions, min_count).words if word not in self._ids]
        return Vocabulary([*self.words, *new])

    @property
    def key(self) -> list[str] | str:
        """Argument of :func:`load_vocabulary` that restores the vocabulary without a file."""
        return self.words

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, text: str) -> list[int]:
        """Ids of a sentence between begin and end."""
        return [BOS, *(self._ids.get(word, UNK) for word in words_of(text)), EOS]

    def decode(self, ids: Iterable[int]) -> str:
        """Sentence of ids up to the end token."""
        words = []
        for index in ids:
            if index == EOS:
                break
            if index not in (PAD, BOS):
                words.append(self.words[index])
        return _joined(words)

    def content_ids(self, ids: Iterable[int]) -> list[int]:
        """Ids before the end token, without special tokens."""
        before_end = takewhile(lambda index: index != self.special.eos, ids)
        return [index for index in before_end if index not in self.special.suppress_tokens]

    def grouped(self, ids: Iterable[int]) -> list[tuple[str, int]]:
        """Words of ids without special tokens, and the number of ids of each word."""
        return [(self.words[index], 1) for index in ids]


def _joined(words: Iterable[str]) -> str:
    return _SPACE_AFTER.sub(r"\1", _SPACE_BEFORE.sub(r"\1", " ".join(words)))


@cache
def _clip_tokenizer() -> Any:
    from open_clip.tokenizer import SimpleTokenizer

    return SimpleTokenizer()


class ClipVocabulary(Vocabulary):
    """CLIP's 49,408 lower-cased sub-words, from open_clip; id 0 ("!") is also the padding, as in CLIP."""

    def __init__(self) -> None:
        tokenizer = _clip_tokenizer()
        self.words = list(tokenizer.encoder)
        begin, end = tokenizer.sot_token_id, tokenizer.eot_token_id
        self.special = SpecialIds(0, begin, end, (0, begin), mask=begin)

    @property
    def key(self) -> list[str] | str:
        return CLIP

    def encode(self, text: str) -> list[int]:
        """Ids of a sentence between begin and end."""
        return [self.special.bos, *_clip_tokenizer().encode(text), self.special.eos]

    def decode(self, ids: Iterable[int]) -> str:
        """Sentence of ids up to the end token."""
        return _joined(_clip_tokenizer().decode(self.content_ids(ids)).split())

    def grouped(self, ids: Iterable[int]) -> list[tuple[str, int]]:
        """Words of ids without special tokens, and the number of sub-words of each word."""
        words: list[list[int]] = [[]]
        for index in ids:
            words[-1].append(index)
            if self.words[index].endswith("</w>"):
                words.append([])
        return [(_clip_tokenizer().decode(word).strip(), len(word)) for word in words if word]


_HYPHEN = re.compile(r"(?<=\w) - (?=\w)")
_CLITIC = re.compile(r"(\w) ' (s|t|d|m|re|ve|ll)\b")


class BertVocabulary(Vocabulary):
    """BERT's lower-cased word pieces, 30,522 in ``bert-base-uncased``; a caption is between [CLS] and [SEP].

    Args:
        words: all pieces, in the order of their ids; pieces inside a word begin with ``##``.

    Raises:
        CheckpointError: a special word of BERT is missing.
    """

    def __init__(self, words: Sequence[str]) -> None:
        from tokenizers import BertWordPieceTokenizer

        missing = [word for word in BERT_SPECIALS if word not in words]
        if missing:
            raise CheckpointError(f"the vocabulary lacks {', '.join(missing)} of BERT's {', '.join(BERT_SPECIALS)}")
        self.words = list(words)
        ids = {word: index for index, word in enumerate(self.words)}
        pad, unknown, begin, end, mask = (ids[word] for word in BERT_SPECIALS)
        self.special = SpecialIds(pad, begin, end, (pad, begin, unknown, mask), mask=mask)
        self._tokenizer = BertWordPieceTokenizer(ids)

    @classmethod
    def from_file(cls, path: str | Path) -> BertVocabulary:
        """Read ``vocab.txt``, or a Hugging Face model folder that contains it.

        Raises:
            CheckpointError: the file is missing, or is not a vocabulary of BERT.
        """
        file = Path(path).expanduser()
        file = file / BERT_FILE if file.is_dir() else file
        if not file.is_file():
            raise CheckpointError(
                f"{str(file)!r} does not exist; expected BERT's {BERT_FILE}, or a folder that holds it"
            )
        try:
            return cls(file.read_text(encoding="utf-8").splitlines())
        except UnicodeDecodeError as error:
            raise CheckpointError(
                f"{str(file)!r}: byte {error.start} is not UTF-8; expected BERT's {BERT_FILE}"
            ) from None

    def encode(self, text: str) -> list[int]:
        """Ids of a sentence between begin and end."""
        pieces: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return [self.special.bos, *pieces, self.special.eos]

    def decode(self, ids: Iterable[int]) -> str:
        """Sentence of ids up to the end token."""
        # BERT splits at every apostrophe and hyphen, unlike the references of benchmarks
        text = _HYPHEN.sub("-", _joined(word for word, _ in self.grouped(self.content_ids(ids))))
        return _CLITIC.sub(r"\1'\2", text)

    def grouped(self, ids: Iterable[int]) -> list[tuple[str, int]]:
        """Words of ids without special tokens, and the number of pieces of each word."""
        words: list[list[str]] = []
        for index in ids:
            piece = self.words[index]
            if piece.startswith("##") and words:
                words[-1].append(piece[2:])
            else:
                words.append([piece])
        return [("".join(pieces), len(pieces)) for pieces in words]


def load_vocabulary(words: Sequence[str] | str) -> Vocabulary:
    """Load a vocabulary from a list of words, CLIP's by the name ``clip``, or BERT's from a file or folder.

    A list that starts with BERT's special words is BERT's.

    Raises:
        ConfigError: the name is unknown, or the list is not a vocabulary.
    """
    if not isinstance(words, str):
        return BertVocabulary(words) if words and words[0] == BERT_SPECIALS[0] else Vocabulary(words)
    if words == CLIP:
        return ClipVocabulary()
    if not Path(words).expanduser().exists():
        raise ConfigError(
            f"vocabulary is {words!r}; expected {CLIP!r}, a list of words, BERT's {BERT_FILE}, or a folder with "
            f"{BERT_FILE}"
        )
    return BertVocabulary.from_file(words)
