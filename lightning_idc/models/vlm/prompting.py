"""Prompts about two images as a model takes them: their tokens, with a placeholder per feature of the images."""

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
    """The prompt with the question of the pair where it asks it.

    Raises:
        ConfigError: the pair has none.
    """
    if QUESTION not in prompt:
        return prompt
    question = meta.get("question")
    if not isinstance(question, str):
        raise ConfigError(
            f"the prompt {prompt!r} asks a pair's own question, and pair {id!r} has none; its data module has "
            'to give meta["question"], as ImgDiff does, or set another prompt'
        )
    return prompt.replace(QUESTION, question)


def prompt_tokens(net: VLMNet, prompt: str, size: tuple[int, int], answer: int) -> dict[str, Tensor]:
    """Inputs of the model for one prompt about two images.

    Args:
        net: of the captioner.
        prompt: what is asked.
        size: height and width of the images.
        answer: tokens that an answer may have.

    Raises:
        ConfigError: the prompt shows no two images or others, or is longer than the model's context.
    """
    refuse_placeholders(net, prompt)
    height, width = size
    images = list(torch.zeros(1, 2, 3, height, width, dtype=torch.uint8))
    try:
        found = net.family.inputs(net.processor, [prompt], images)
    except (ValueError, TemplateError) as error:
        raise ConfigError(
            f"the processor cannot put two images into the prompt {prompt!r}: {error}; choose a model that takes "
            "several images"
        ) from error
    if not (found["input_ids"] == image_token(net.model.config)).any():
        raise ConfigError(
            f"the prompt {prompt!r} shows no image: the chat template of the model leaves them out; give the "
            "model's processor a template that shows them, or none"
        )
    length = found["input_ids"].shape[1]
    room = net.model.config.get_text_config().to_dict().get("max_position_embeddings")
    if room is not None and length + answer > room:
        raise ConfigError(
            f"a prompt with two images of {height}x{width} has {length} tokens; with an answer of {answer} that "
            f"is more than the {room} of the model. Set `max_pixels`, or a smaller max_length"
        )
    inputs = {name: found[name][0] for name in ("input_ids", *TOKEN_TYPES) if name in found}
    ids, grid = found["input_ids"], found.get("image_grid_thw")
    extras = {} if grid is None else {"grid": grid[None]}
    positions = net.family.positions(net.model, ids, torch.ones_like(ids, dtype=torch.bool), extras)
    # tokens first, as they are padded
    return {**inputs, "positions": positions[0].movedim(-1, 0)}


def refuse_placeholders(net: VLMNet, prompt: str) -> None:
    """Raise where a prompt holds what stands for an image, as those of instruction data do.

    Args:
        net: of the captioner.
        prompt: what is asked, without its images.

    Raises:
        ConfigError: it does.
    """
    names = net.processor.tokenizer.convert_ids_to_tokens(sorted(net.media_tokens))
    found = [name for name in names if name in prompt]
    if found:
        raise ConfigError(
            f"the prompt {prompt!r} holds {found[0]}, which stands for an image; leave it out: the images are put in "
            "front of what is asked"
        )


def padded_prompts(asked: Sequence[Mapping[str, Tensor]], padding: int) -> dict[str, Tensor]:
    """Prompts of a batch, padded to one length.

    Args:
        asked: of each pair, as of :func:`prompt_tokens`.
        padding: id of it.
    """
    lengths = torch.tensor([len(row["input_ids"]) for row in asked])
    # padded on the left, so that every answer starts right behind its prompt
    found = {
        ("prompt_ids" if name == "input_ids" else name): nn.utils.rnn.pad_sequence(
            [row[name] for row in asked], True, padding if name == "input_ids" else 0, "left"
        )
        for name in asked[0]
    }
    longest = int(lengths.max())
    found["positions"] = found["positions"].movedim(1, -1)
    return {**found, "prompt_mask": torch.arange(longest) >= longest - lengths[:, None]}
