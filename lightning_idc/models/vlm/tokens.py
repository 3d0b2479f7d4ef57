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
        generation_config: of the model.

    Raises:
        ConfigError: there is none.
    """
    tokenizer = processor.tokenizer
    given = None if generation_config is None else generation_config.eos_token_id
    given = [] if given is None else [given] if isinstance(given, int) else list(given)
    found = [*_turn_end(processor), tokenizer.eos_token_id, *given]
    known = [i for i in dict.fromkeys(found) if i is not None and 0 <= i < len(tokenizer)]
    if not known:
        raise ConfigError("the tokenizer of the model has no end token, without which no caption would ever end")
    return known


def _turn_end(processor: Any) -> list[int]:
    """The special token by which the chat template ends what the assistant says, where it does."""
    if not processor.chat_template:
        return []
    mark = "ANSWER"
    texts = {"user": "?", "assistant": mark}
    talk = [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in texts.items()]
    try:
        said = processor.apply_chat_template(talk, tokenize=False)
    except (TemplateError, TypeError) as error:
        raise ConfigError(
            f"the chat template of the model cannot be filled in with a question and an answer ({error}); give the "
            "model's processor a template that takes contents as lists of images and texts, or none"
        ) from error
    _, _, behind = said.rpartition(mark)
    special = set(processor.tokenizer.all_special_ids) | set(processor.tokenizer.added_tokens_decoder)
    return [i for i in processor.tokenizer(behind, add_special_tokens=False).input_ids[:1] if i in special]


class TokenizerVocabulary(Vocabulary):
    """The tokenizer of a transformers model; a caption begins behind its prompt, so its begin token is never read.

    A caption ends at any token that the tokenizer, the generation configuration or the chat template ends a turn
    with; captions to learn from end with the template's. All other tokens can be said but padding and images'.

    Args:
        processor: the model's processor.
        generation_config: of the model; its ``eos_token_id`` may be several.
        image_tokens: ids that stand for features of images.
    """

    def __init__(self, processor: Any, generation_config: Any = None, image_tokens: Iterable[int] = ()) -> None:
        self.tokenizer = tokenizer = processor.tokenizer
        self.words = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
        stops = stop_tokens(processor, generation_config)
        end = stops[0]
        padding = end if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        silent = {*image_tokens, padding} - set(stops)
        self.special = SpecialIds(padding, padding, end, tuple(sorted(silent)), stops=tuple(stops))

    def encode(self, text: str) -> list[int]:
        """Ids of a sentence between begin and end."""
        return [self.special.bos, *self.tokenizer(text, add_special_tokens=False).input_ids, self.special.eos]

    def decode(self, ids: Iterable[int]) -> str:
        """Sentence of ids up to the end token."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True).strip()
