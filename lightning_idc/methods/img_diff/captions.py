"""Caption editing: one object of a caption is replaced, with a lexicon or a language model.

1. `LexiconEdits` or `PromptedEdits` replaces an object of the fact ``caption``,
2. an edit that replaces nothing, or too much, drops the record,
3. the facts ``captions`` and ``nouns`` keep both captions and the words in which they differ.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from lightning_idc.methods.img_diff.lexicon import Lexicon
from lightning_idc.methods.img_diff.prompts import CAPTION_EDIT
from lightning_idc.synthesis.models.base import TextModel
from lightning_idc.synthesis.records import Record, record_generator
from lightning_idc.synthesis.stages import PipelineStage
from lightning_idc.utils.bounds import NonNegativeInt, check_arguments

_WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")
_META_WORDS = ("replac", "modified", "become")
"""Words of an answer that describes the edit instead of making it (ImgDiff scripts)."""


class LexiconEdits(PipelineStage):
    """Replaces a noun by a random one of its category (section 11).

    Reads the fact ``caption``; writes ``captions`` (original and edited) and ``nouns``.

    Args:
        wordnet: folder of WordNet's database; None for the small built-in list.
        seed: random seed, as in `PipelineStage`.
    """

    def __init__(self, wordnet: str | None = None, seed: int = 0) -> None:
        super().__init__(seed)
        self.wordnet = wordnet
        self.lexicon = Lexicon.builtin() if wordnet is None else Lexicon.wordnet(wordnet)

    def settings(self) -> dict[str, Any]:
        return {"model": "lexicon", "nouns": len(self.lexicon)}

    def process(self, records: list[Record]) -> list[Record]:
        for record in records:
            edit = replace_noun(record.facts["caption"], self.lexicon, record_generator(self.seed, record.id))
            if edit is None:
                record.drop("no known noun", record.facts["caption"], f"one of {len(self.lexicon)}")
            else:
                record.facts["captions"], record.facts["nouns"] = edit
        return records


class PromptedEdits(PipelineStage):
    """Replaces an object with a language model; invalid answers drop the record.

    Answers are cleaned and checked by the rules of the authors' scripts. In addition an object must be replaced, as the
    later stages need its names.

    Args:
        model: language model; Vicuna-1.5-13B in the paper.
        prompt: instruction with ``{caption}``.
        max_changed_words: maximum number of changed words in both captions; None, as in the scripts, for no limit.
        seed: random seed, as in `PipelineStage`.
    """

    def __init__(
        self,
        model: TextModel,
        prompt: str = CAPTION_EDIT,
        max_changed_words: NonNegativeInt | None = None,
        seed: int = 0,
    ) -> None:
        check_arguments(PromptedEdits.__init__, locals())
        super().__init__(seed)
        self.model, self.prompt, self.max_changed_words = model, prompt, max_changed_words

    def settings(self) -> dict[str, Any]:
        return {
            "model": self.model.settings(),
            "prompt": self.prompt,
            "max_changed_words": self.max_changed_words,
        }

    def process(self, records: list[Record]) -> list[Record]:
        prompts = [self.prompt.format(caption=record.facts["caption"]) for record in records]
        seeds = [int(record_generator(self.seed, record.id).integers(2**31)) for record in records]
        for record, prompt, answer in zip(records, prompts, self.model.answer(prompts, seeds), strict=True):
            self._check_edit(record, clean_answer(answer, prompt))
        return records

    def _check_edit(self, record: Record, edited: str) -> None:
        caption = record.facts["caption"]
        nouns = changed_words(caption, edited)
        num_changed = len(nouns[0].split()) + len(nouns[1].split())
        if not edited:
            record.drop("empty answer", "", "a sentence")
        elif any(word in edited.lower() for word in _META_WORDS):
            record.drop("answer describes the edit", edited, f"none of {', '.join(_META_WORDS)}")
        elif not nouns[0] or not nouns[1]:
            record.drop("no object replaced", edited, "another object")
        elif self.max_changed_words is not None and num_changed > self.max_changed_words:
            record.drop("too many words changed", f"{nouns[0]} / {nouns[1]}", f"at most {self.max_changed_words}")
        else:
            record.facts["captions"], record.facts["nouns"] = [caption, edited], list(nouns)


def clean_answer(answer: str, prompt: str = "") -> str:
    """Extract the sentence from a language model's answer, by the rules of the scripts.

    Args:
        answer: answer of the model.
        prompt: prompt that the answer may repeat.

    Example:
        >>> clean_answer('Sure --- "A cat sleeps."</s>')
        'A cat sleeps.'
    """
    for text in (prompt, "\nEND", "</s>", "<s>"):
        answer = answer.replace(text, "") if text else answer
    lines = [line.strip() for line in answer.rpartition("---")[2].strip().splitlines()]
    return next((line for line in lines if line), "").strip('"').strip()


def replace_noun(caption: str, lexicon: Lexicon, rng: np.random.Generator) -> tuple[list[str], list[str]] | None:
    """Replace a random noun by another of its category; a plural is replaced by a plural.

    Args:
        caption: one sentence.
        lexicon: nouns by category.
        rng: random number generator.

    Returns:
        The caption and its edited version, and the two nouns; None if the caption has no noun of the lexicon.
    """
    words = ((match, _singular(match.group(), lexicon)) for match in _WORD.finditer(caption))
    nouns = [(match, form) for match, form in words if form is not None]
    if not nouns:
        return None
    match, (old, is_plural) = nouns[int(rng.integers(len(nouns)))]
    candidates = [noun for noun in lexicon.nouns[lexicon.category[old]] if noun != old]
    new = candidates[int(rng.integers(len(candidates)))]
    replacement = _plural(new) if is_plural else new
    start, end = match.span()
    prefix = caption[:start]
    if not is_plural:
        prefix = re.sub(r"\b(a|an)\s+$", lambda m: _article(m.group(1), new) + " ", prefix, flags=re.IGNORECASE)
    replacement = replacement.capitalize() if match.group()[0].isupper() else replacement
    return [caption, prefix + replacement + caption[end:]], [old, new]


def _singular(word: str, lexicon: Lexicon) -> tuple[str, bool] | None:
    """Singular of a word in the lexicon, and whether the word is a plural."""
    low = word.lower()
    if low in lexicon.category:
        return low, False
    for ending, instead in (("ies", "y"), ("ves", "f"), ("es", ""), ("s", "")):
        if low.endswith(ending) and low[: -len(ending)] + instead in lexicon.category:
            return low[: -len(ending)] + instead, True
    return None


def _plural(noun: str) -> str:
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith(("s", "x", "z", "ch", "sh")) else "s")


def _article(old: str, noun: str) -> str:
    new = "an" if noun[0] in "aeiou" else "a"
    return new.capitalize() if old[0].isupper() else new


def changed_words(first: str, second: str) -> tuple[str, str]:
    """Words that only the first sentence has, and words that only the second one has, without articles.

    Args:
        first: caption.
        second: edited caption.
    """
    words: list[list[str]] = [_WORD.findall(text.lower()) for text in (first, second)]
    matcher = difflib.SequenceMatcher(None, words[0], words[1], autojunk=False)
    removed: list[str] = []
    added: list[str] = []
    for tag, first_start, first_end, second_start, second_end in matcher.get_opcodes():
        if tag != "equal":
            removed += words[0][first_start:first_end]
            added += words[1][second_start:second_end]
    return _without_articles(removed), _without_articles(added)


def _without_articles(words: Sequence[str]) -> str:
    return " ".join(word for word in words if word not in ("a", "an", "the"))
