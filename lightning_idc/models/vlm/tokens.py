"""The tokenizer of a vision-language model as the vocabulary of a captioner."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Set
from typing import Any

from jinja2 import TemplateError

from lightning_idc.models.vlm.chat_template import template_of
from lightning_idc.nn.vocabulary import SpecialIds, Vocabulary, word_spans
from lightning_idc.utils.answers import ThoughtTokens, read_answer
from lightning_idc.utils.errors import ConfigError


def stop_tokens(processor: Any, generation_config: Any = None) -> list[int]:
    """Ids that end an answer: the chat template's, the tokenizer's, then those of the generation configuration.

    Args:
        processor: the model's processor.
        generation_config: generation configuration of the model.

    Raises:
        ConfigError: there are no such ids.
    """
    tokenizer = processor.tokenizer
    eos = None if generation_config is None else generation_config.eos_token_id
    eos = [] if eos is None else [eos] if isinstance(eos, int) else list(eos)
    candidates = [*_turn_end(processor), tokenizer.eos_token_id, *eos]
    stops = [i for i in dict.fromkeys(candidates) if i is not None and 0 <= i < len(tokenizer)]
    if not stops:
        raise ConfigError("the tokenizer of the model has no end token, so captions would never end")
    return stops


USED_SETTINGS = ("bos_token_id", "eos_token_id", "pad_token_id", "transformers_version", "_from_model_config")
"""Entries of a generation configuration that captioning uses, or that say nothing about decoding."""


def unused_settings(generation_config: Any) -> dict[str, Any]:
    """Settings of a model's generation configuration that differ from the defaults and are not used.

    ``generate`` of transformers and servers apply them, so that their captions may differ.

    Args:
        generation_config: generation configuration of the model, or None.
    """
    if generation_config is None:
        return {}
    settings: dict[str, Any] = generation_config.to_diff_dict()
    return {name: value for name, value in settings.items() if name not in USED_SETTINGS and value is not None}


def _turn_end(processor: Any) -> list[int]:
    """Id of the special token with which the chat template ends a turn of the assistant, if there is one."""
    template = template_of(processor)
    if not template:
        return []
    answer = "ANSWER"
    texts = {"user": "?", "assistant": answer}
    messages = [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in texts.items()]
    try:
        chat = processor.apply_chat_template(messages, chat_template=template, tokenize=False)
    except (TemplateError, TypeError) as error:
        raise ConfigError(
            f"the chat template of the model cannot be filled in with a question and an answer ({error}); set a "
            "template of the processor that accepts contents as lists of images and texts, or none"
        ) from error
    _, _, suffix = chat.rpartition(answer)
    special = set(processor.tokenizer.all_special_ids) | set(processor.tokenizer.added_tokens_decoder)
    return [i for i in processor.tokenizer(suffix, add_special_tokens=False).input_ids[:1] if i in special]


def mask_token(tokenizer: Any, exclude: Set[int], default: int) -> int:
    """Id that is read in place of a masked word: the tokenizer's mask token, its unknown token, or an underscore.

    Args:
        tokenizer: tokenizer of the model.
        exclude: ids with another meaning, such as placeholders of images and end tokens.
        default: id where the tokenizer has none of the three.
    """
    underscores = [ids for ids in (tokenizer(text, add_special_tokens=False).input_ids for text in (" _", "_"))]
    candidates = [tokenizer.mask_token_id, tokenizer.unk_token_id, *(ids[0] for ids in underscores if len(ids) == 1)]
    return next((index for index in candidates if index is not None and index not in exclude), default)


class TokenizerVocabulary(Vocabulary):
    """The tokenizer of a transformers model; captions follow a prompt, so the begin token is never an input.

    A caption ends at any end token of the chat template, the tokenizer or the generation configuration; training
    captions end with the first of these. Padding, image placeholders and ids beyond the tokenizer, which the heads of
    many models have, are never generated.

    Args:
        processor: the model's processor.
        generation_config: generation configuration of the model; its ``eos_token_id`` may be a list.
        image_tokens: ids of placeholders of image features.
        head_size: number of ids that the head of the model can generate; that of the tokenizer when None.

    Raises:
        ConfigError: the tokenizer has more tokens than the head, or no end token.
    """

    def __init__(
        self,
        processor: Any,
        generation_config: Any = None,
        image_tokens: Iterable[int] = (),
        head_size: int | None = None,
    ) -> None:
        size = len(processor.tokenizer)
        head_size = size if head_size is None else head_size
        if size > head_size:
            raise ConfigError(
                f"the tokenizer of the model has {size} tokens and its head {head_size}; expected at most as many: "
                "call resize_token_embeddings of transformers and save the model again"
            )
        self.tokenizer = tokenizer = processor.tokenizer
        self._thought = ThoughtTokens.of(tokenizer)
        self.words = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
        stops = stop_tokens(processor, generation_config)
        end = stops[0]
        padding = end if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        media = set(image_tokens)
        suppressed = {*media, padding, *range(size, head_size)} - set(stops)
        mask = mask_token(tokenizer, exclude={*media, *stops}, default=padding)
        self.special = SpecialIds(padding, padding, end, tuple(sorted(suppressed)), stops=tuple(stops), mask=mask)

    def encode(self, text: str) -> list[int]:
        """Ids of a sentence, with begin and end token."""
        return [self.special.bos, *self.tokenizer(text, add_special_tokens=False).input_ids, self.special.eos]

    def decode(self, ids: Iterable[int]) -> str:
        """Sentence of the ids up to the end token, without a thought before it."""
        # markers of thoughts may be special tokens, which the text would lack
        text = self.tokenizer.decode(self._thought.after(list(ids)), skip_special_tokens=True)
        return str(read_answer(text)).strip()

    def grouped(self, ids: Iterable[int]) -> list[tuple[str, int]]:
        """Words of ids without special tokens, each with its number of tokens.

        The words are those of :func:`~lightning_idc.nn.vocabulary.words_of`; words that share a token are one.
        """
        sequence = list(ids)
        text = self._plain_text(sequence)
        starts = [span.start for span in word_spans(text)]
        groups: list[tuple[int, int, int]] = []  # first and last character of each word, and its number of tokens
        begin, covered = 0, -1
        for index in range(len(sequence)):
            end = len(self._plain_text(sequence[: index + 1]))
            piece = text[begin:end]
            first_character = begin + len(piece) - len(piece.lstrip())
            first_word = max(bisect_right(starts, first_character) - 1, 0)
            if first_word > covered:
                groups.append((begin, end, 1))
            else:
                groups[-1] = (groups[-1][0], end, groups[-1][2] + 1)
            covered = max(covered, first_word, bisect_left(starts, end) - 1)
            begin = end
        return [(text[first:last].strip().lower(), count) for first, last, count in groups]

    def _plain_text(self, ids: list[int]) -> str:
        text: str = self.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        return text
