"""Tokenized prompts about two images, with a placeholder per image feature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jinja2 import TemplateError
from torch import Tensor, nn

from lightning_idc.models.vlm.families.base import TOKEN_TYPES, image_token
from lightning_idc.models.vlm.net import VLMNet
from lightning_idc.utils.errors import ConfigError

PROMPT = "What changed from the first image to the second?"
QUESTION = "{question}"


def with_question(prompt: str, id: str, meta: dict[str, Any]) -> str:
    """Replace ``{question}`` in a prompt by the question of a pair.

    Raises:
        ConfigError: the pair has no question.
    """
    if QUESTION not in prompt:
        return prompt
    question = meta.get("question")
    if not isinstance(question, str):
        raise ConfigError(
            f'the prompt {prompt!r} contains {QUESTION}, but pair {id!r} has no meta["question"]; use a data module '
            "that sets it, such as ImgDiff, or another prompt"
        )
    return prompt.replace(QUESTION, question)


def prompt_tokens(net: VLMNet, prompt: str, size: tuple[int, int], max_answer_length: int) -> dict[str, Tensor]:
    """Inputs of the model for one prompt about two images.

    Args:
        net: network of the captioner.
        prompt: instruction about the images.
        size: height and width of the images.
        max_answer_length: maximum number of tokens of an answer.

    Raises:
        ConfigError: the prompt contains placeholders, the model does not take two images, or the context is too short.
    """
    check_placeholders(net, prompt)
    height, width = size
    images = list(torch.zeros(1, 2, 3, height, width, dtype=torch.uint8))
    try:
        processed = net.family.inputs(net.processor, [prompt], images)
    except (ValueError, TemplateError) as error:
        raise ConfigError(
            f"the processor cannot put two images into the prompt {prompt!r}: {error}; choose a model that takes "
            "several images"
        ) from error
    if not (processed["input_ids"] == image_token(net.model.config)).any():
        raise ConfigError(
            f"the prompt {prompt!r} contains no image: the chat template of the model leaves them out; set a template "
            "of the processor that includes images, or none"
        )
    length = processed["input_ids"].shape[1]
    context_length = net.model.config.get_text_config().to_dict().get("max_position_embeddings")
    if context_length is not None and length + max_answer_length > context_length:
        raise ConfigError(
            f"a prompt with two images of {height}x{width} has {length} tokens; with an answer of {max_answer_length} "
            f"that exceeds the context length of the model, {context_length}; set `max_pixels`, or a smaller max_length"
        )
    inputs = {name: processed[name][0] for name in ("input_ids", *TOKEN_TYPES) if name in processed}
    ids, grid = processed["input_ids"], processed.get("image_grid_thw")
    extras = {} if grid is None else {"grid": grid[None]}
    positions = net.family.positions(net.model, ids, torch.ones_like(ids, dtype=torch.bool), extras)
    # the token dimension first, for pad_sequence
    return {**inputs, "positions": positions[0].movedim(-1, 0)}


def check_placeholders(net: VLMNet, prompt: str) -> None:
    """Check that a prompt does not contain image placeholders, as prompts of instruction data do.

    Args:
        net: network of the captioner.
        prompt: instruction without images.

    Raises:
        ConfigError: the prompt contains a placeholder.
    """
    names = net.processor.tokenizer.convert_ids_to_tokens(sorted(net.media_tokens))
    placeholders = [name for name in names if name in prompt]
    if placeholders:
        raise ConfigError(
            f"the prompt {prompt!r} contains the image placeholder {placeholders[0]}; leave it out: the images are "
            "inserted before the prompt"
        )


def pad_prompts(prompts: Sequence[Mapping[str, Tensor]], padding: int) -> dict[str, Tensor]:
    """Pad the prompts of a batch to one length.

    Args:
        prompts: result of :func:`prompt_tokens` for each pair.
        padding: id of the padding token.
    """
    lengths = torch.tensor([len(row["input_ids"]) for row in prompts])
    # padded on the left, so that every answer directly follows its prompt
    batch = {
        ("prompt_ids" if name == "input_ids" else name): nn.utils.rnn.pad_sequence(
            [row[name] for row in prompts],
            batch_first=True,
            padding_value=padding if name == "input_ids" else 0,
            padding_side="left",
        )
        for name in prompts[0]
    }
    longest = int(lengths.max())
    batch["positions"] = batch["positions"].movedim(1, -1)
    return {**batch, "prompt_mask": torch.arange(longest) >= longest - lengths[:, None]}
