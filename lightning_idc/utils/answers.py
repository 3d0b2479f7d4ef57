"""Answers of language models, local or behind an endpoint: without thoughts, and marked where they are truncated."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

MARKERS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("[THINK]", "[/THINK]"),
)
"""Begin and end of a thought in the text of models."""


class CutOff(str):
    """Answer that was truncated by the token limit of the model."""

    __slots__ = ()


def read_answer(text: str, is_cut: bool = False) -> str:
    """Read what a model generated: without its thought, encodable as UTF-8, and marked if it is truncated.

    A thought that the token limit cut leaves an empty answer.

    Args:
        text: generated text, without special tokens.
        is_cut: whether the token limit ended it.

    Returns:
        The answer; a :class:`CutOff` if it is truncated.

    Example:
        >>> read_answer("It is smaller now.\\n</think>\\n\\nthe cube is gone")
        'the cube is gone'
    """
    answer = text
    for begin, end in MARKERS:
        answer, unfinished, _ = answer.rpartition(end)[2].partition(begin)
        is_cut = is_cut or bool(unfinished)
    if answer != text:
        answer = answer.strip()
    # a token limit can split an emoji, which leaves a lone surrogate that UTF-8 cannot encode
    answer = answer.encode("utf-8", "replace").decode()
    return CutOff(answer) if is_cut else answer


def has_thought(text: str) -> bool:
    """Whether a generated text contains a thought, complete or not."""
    return any(marker in text for pair in MARKERS for marker in pair)


def whole_words(answer: str) -> str:
    """An answer without the last word of a truncated one: "score: 8" may be the beginning of "score: 85".

    Example:
        >>> whole_words(CutOff("score: 8")), whole_words("score: 8")
        ('score: ', 'score: 8')
    """
    return re.sub(r"\S+\Z", "", answer) if isinstance(answer, CutOff) else answer


@dataclass(frozen=True)
class ThoughtTokens:
    """Ids of the tokens that begin and end a thought, where a tokenizer has such tokens."""

    begins: frozenset[int]
    ends: frozenset[int]

    @classmethod
    def of(cls, tokenizer: Any) -> ThoughtTokens:
        """Those of a tokenizer of transformers."""
        ids = tokenizer.get_added_vocab()
        begins, ends = ([ids[token] for token in tokens if token in ids] for tokens in zip(*MARKERS, strict=True))
        return cls(frozenset(begins), frozenset(ends))

    def after(self, ids: list[int]) -> list[int]:
        """Ids of an answer without the thought before it."""
        last_end = max((index for index, token in enumerate(ids) if token in self.ends), default=-1)
        answer = ids[last_end + 1 :]
        return list(takewhile(lambda token: token not in self.begins, answer))


def decode_answers(tokenizer: Any, ids: Sequence[list[int]]) -> list[str]:
    """Texts of generated tokens, without special tokens and without thoughts whose markers are special tokens.

    Args:
        tokenizer: tokenizer of transformers.
        ids: generated tokens of each answer.
    """
    thought = ThoughtTokens.of(tokenizer)
    return list(tokenizer.batch_decode([thought.after(row) for row in ids], skip_special_tokens=True))


def cut_off(model: Any, ids: Sequence[list[int]], max_new_tokens: int) -> list[bool]:
    """Which answers reached the token limit without an end token.

    Args:
        model: model of transformers.
        ids: generated tokens of each answer.
        max_new_tokens: token limit.
    """
    ends = model.generation_config.eos_token_id
    end_tokens = {ends} if isinstance(ends, int) else set(ends or ())
    return [len(row) >= max_new_tokens and end_tokens.isdisjoint(row) for row in ids]
