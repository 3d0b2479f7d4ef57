"""The tokenizer of a vision-language model as the vocabulary of a captioner."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jinja2 import TemplateError

from lightning_idc.nn.vocabulary import SpecialIds, Vocabulary
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


def _turn_end(processor: Any) -> list[int]:
    """Id of the special token with which the chat template ends a turn of the assistant, if there is one."""
    if not processor.chat_template:
        return []
    answer = "ANSWER"
    texts = {"user": "?", "assistant": answer}
    messages = [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in texts.items()]
    try:
        chat = processor.apply_chat_template(messages, tokenize=False)
    except (TemplateError, TypeError) as error:
        raise ConfigError(
            f"the chat template of the model cannot be filled in with a question and an answer ({error}); set a "
            "template of the processor that accepts contents as lists of images and texts, or none"
        ) from error
    _, _, suffix = chat.rpartition(answer)
    special = set(processor.tokenizer.all_special_ids) | set(processor.tokenizer.added_tokens_decoder)
    return [i for i in processor.tokenizer(suffix, add_special_tokens=False).input_ids[:1] if i in special]


class TokenizerVocabulary(Vocabulary):
    """The tokenizer of a transformers model; captions follow a prompt, so the begin token is never an input.

    A caption ends at any end token of the chat template, the tokenizer or the generation configuration; training
    captions end with the first of these. Padding and image placeholders are never generated.

    Args:
        processor: the model's processor.
        generation_config: generation configuration of the model; its ``eos_token_id`` may be a list.
        image_tokens: ids of placeholders of image features.
    """

    def __init__(self, processor: Any, generation_config: Any = None, image_tokens: Iterable[int] = ()) -> None:
        self.tokenizer = tokenizer = processor.tokenizer
        self.words = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
        stops = stop_tokens(processor, generation_config)
        end = stops[0]
        padding = end if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        suppressed = {*image_tokens, padding} - set(stops)
        self.special = SpecialIds(padding, padding, end, tuple(sorted(suppressed)), stops=tuple(stops))

    def encode(self, text: str) -> list[int]:
        """Ids of a sentence, with begin and end token."""
        return [self.special.bos, *self.tokenizer(text, add_special_tokens=False).input_ids, self.special.eos]

    def decode(self, ids: Iterable[int]) -> str:
        """Sentence of the ids up to the end token."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True).strip()
