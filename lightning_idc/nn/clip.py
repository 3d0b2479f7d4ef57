"""CLIP of open_clip with access to its parts: configuration, vocabulary, and all text tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lightning_idc.checkpoints.reading import read_checkpoint
from lightning_idc.checkpoints.restricted import is_torchscript, read_torchscript
from lightning_idc.nn.vocabulary import ClipVocabulary, Vocabulary
from lightning_idc.utils.errors import CheckpointError, ConfigError

CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)

TEXT_HEADS = "clip.text_cfg.heads"
"""Key of the text tower's number of heads in :func:`clip_computation`."""
_ARCHIVED = ("input_resolution", "context_length", "vocab_size")
"""Buffers of OpenAI's archives that are not weights."""


def build_clip(config: str | dict[str, Any], vocabulary: Vocabulary, pretrained: str | None = None) -> Any:
    """A CLIP of open_clip with a vision transformer, and with a text tower for a vocabulary.

    Args:
        config: name of a configuration of open_clip, or a configuration.
        vocabulary: words of the text tower; replaces the configuration's ``vocab_size``.
        pretrained: tag or file of weights for the named configuration, as open_clip knows them, or a TorchScript file
            of OpenAI, such as ``ViT-B-32.pt``, of which no code is run; random when None.

    Raises:
        ConfigError: open_clip knows no such model, the weights are for other words, or they are OpenAI's and the
            configuration has another GELU.
        CheckpointError: the weights are not available, or cannot be read.
    """
    from open_clip.model import CLIP as OpenClip
    from open_clip.transformer import VisionTransformer

    if isinstance(config, str) and ":" in config:
        # hf-hub: and local-dir: may come from a checkpoint of somebody else, which must fetch and read nothing
        raise ConfigError(f"clip is {config!r}; expected one of open_clip's own configurations, or one written out")
    clip = _random(config, vocabulary) if pretrained is None else _pretrained(config, vocabulary, pretrained)
    plain = isinstance(clip, OpenClip) and isinstance(clip.visual, VisionTransformer)
    if not plain or not isinstance(clip.text_projection, nn.Parameter):
        raise ConfigError("only CLIPs with open_clip's own two transformers can be opened up, for example ViT-B-32")
    return clip


def _random(config: str | dict[str, Any], vocabulary: Vocabulary) -> Any:
    import open_clip

    options: dict[str, Any] | None = open_clip.get_model_config(config) if isinstance(config, str) else config
    if options is None:
        raise ConfigError(f"open_clip knows no model {config!r}; `open_clip.list_models()` names those there are")
    try:
        return open_clip.CLIP(**{**options, "text_cfg": {**options["text_cfg"], "vocab_size": len(vocabulary)}})
    except (KeyError, TypeError) as error:
        raise ConfigError(f"this is not a configuration of open_clip's CLIP: {error}") from error


def _pretrained(config: str | dict[str, Any], vocabulary: Vocabulary, weights: str) -> Any:
    import open_clip

    if not isinstance(config, str):
        raise ConfigError("pretrained weights belong to a model of open_clip: give its name, not a configuration")
    if not isinstance(vocabulary, ClipVocabulary):
        raise ConfigError("pretrained CLIP weights read CLIP's own sub-words; set `vocabulary: clip`")
    try:
        if Path(weights).is_file() and is_torchscript(weights):
            _check_quick_gelu(config, weights)
            clip = open_clip.create_model(config, pretrained=None)
            state = {name: value.float() for name, value in read_torchscript(weights).items()}
            clip.load_state_dict({name: value for name, value in state.items() if name not in _ARCHIVED})
            return clip
        if Path(weights).is_file() and Path(weights).suffix != ".safetensors":
            read_checkpoint(weights)  # torch's message about a file with code advises to run it
        return open_clip.create_model(config, pretrained=weights, require_pretrained=True)
    except (CheckpointError, ConfigError):
        raise
    except Exception as error:
        raise CheckpointError(
            f"the weights {weights!r} of {config!r} are not available ({error}); give a file, put them in the Hugging "
            f"Face cache, or leave `pretrained` out"
        ) from error


def _check_quick_gelu(config: str, weights: str) -> None:
    """Check that a configuration has the GELU of OpenAI's CLIPs; a checkpoint would be rebuilt with it."""
    if not clip_computation(config)["clip.quick_gelu"]:
        raise ConfigError(
            f"{Path(weights).name!r} is of OpenAI, whose CLIPs are trained with a quick GELU, and {config!r} has the "
            f"exact one; name a configuration with quick_gelu, such as '{config}-quickgelu'"
        )


def clip_computation(config: str | dict[str, Any]) -> dict[str, Any]:
    """Options of a configuration of open_clip that the shapes of weights do not show, by name.

    Args:
        config: name of a configuration, or a configuration.
    """
    import open_clip

    options: dict[str, Any] = (open_clip.get_model_config(config) if isinstance(config, str) else config) or {}
    vision, text = options.get("vision_cfg") or {}, options.get("text_cfg") or {}
    return {
        "clip.quick_gelu": bool(options.get("quick_gelu", False)),
        "clip.vision_cfg.head_width": vision.get("head_width", 64),
        TEXT_HEADS: text.get("heads", 8),
    }


def text_tokens(clip: Any, tokens: Tensor) -> Tensor:
    """Every token of captions in the joint space, not normalised: ``(N, T)`` ids to ``(N, T, D)``."""
    length = tokens.shape[1]
    x = clip.token_embedding(tokens) + clip.positional_embedding[:length]
    x = clip.transformer(x, attn_mask=clip.attn_mask[:length, :length])
    return clip.ln_final(x) @ clip.text_projection


def pad_texts(captions: Sequence[str], vocabulary: Vocabulary, max_tokens: int) -> Tensor:
    """Token ids of captions ``(N, T)``, truncated to ``max_tokens`` with an end token, as in CLIP."""
    special = vocabulary.special
    rows = [vocabulary.encode(caption) for caption in captions]
    rows = [ids if len(ids) <= max_tokens else [*ids[: max_tokens - 1], special.eos] for ids in rows]
    padded = torch.full((len(rows), max(map(len, rows), default=2)), special.pad)
    for row, ids in zip(padded, rows, strict=True):
        row[: len(ids)] = torch.tensor(ids)
    return padded


def eot_pooling(x: Tensor, tokens: Tensor, end: int) -> Tensor:
    """Features of the first end token: ``(N, T, D)`` to ``(N, D)``."""
    return x[torch.arange(len(x), device=x.device), (tokens == end).int().argmax(1)]
