"""CLIP models of open_clip (Radford et al. 2021): construction, tokenisation, and features of all text tokens."""

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
"""Entries of OpenAI's archives that are not weights."""


def build_clip(config: str | dict[str, Any], vocabulary: Vocabulary, pretrained: str | None = None) -> Any:
    """Build a CLIP of open_clip with a vision transformer, and a text tower for a vocabulary.

    Args:
        config: name of a configuration of open_clip, or a configuration.
        vocabulary: words of the text tower; replaces the configuration's ``vocab_size``.
        pretrained: open_clip's tag of weights, a file of weights, or a TorchScript file of OpenAI such as
            ``ViT-B-32.pt``, whose code is not run; random weights when None.

    Raises:
        ConfigError: open_clip has no such model, the weights are for another vocabulary, or they are OpenAI's and the
            configuration has another GELU.
        CheckpointError: the weights are not available, or cannot be read.
    """
    from open_clip.model import CLIP as OpenClip
    from open_clip.transformer import VisionTransformer

    if isinstance(config, str) and ":" in config:
        # hf-hub: and local-dir: may be in a downloaded checkpoint, which must not make this code fetch or read files
        raise ConfigError(f"clip is {config!r}; expected the name of an open_clip configuration, or a configuration")
    clip = _random(config, vocabulary) if pretrained is None else _pretrained(config, vocabulary, pretrained)
    has_transformers = isinstance(clip, OpenClip) and isinstance(clip.visual, VisionTransformer)
    if not has_transformers or not isinstance(clip.text_projection, nn.Parameter):
        raise ConfigError("expected a CLIP with open_clip's own transformers for images and text, such as ViT-B-32")
    return clip


def _random(config: str | dict[str, Any], vocabulary: Vocabulary) -> Any:
    import open_clip

    options: dict[str, Any] | None = open_clip.get_model_config(config) if isinstance(config, str) else config
    if options is None:
        raise ConfigError(f"open_clip has no model {config!r}; expected one of `open_clip.list_models()`")
    try:
        return open_clip.CLIP(**{**options, "text_cfg": {**options["text_cfg"], "vocab_size": len(vocabulary)}})
    except (KeyError, TypeError) as error:
        raise ConfigError(f"this is not a configuration of open_clip's CLIP: {error}") from error


def _pretrained(config: str | dict[str, Any], vocabulary: Vocabulary, weights: str) -> Any:
    import open_clip

    if not isinstance(config, str):
        raise ConfigError("clip is a configuration; expected the name of an open_clip model for pretrained weights")
    if not isinstance(vocabulary, ClipVocabulary):
        raise ConfigError("pretrained CLIP weights need CLIP's own vocabulary; set `vocabulary: clip`")
    try:
        if Path(weights).is_file() and is_torchscript(weights):
            _check_quick_gelu(config, weights)
            clip = open_clip.create_model(config, pretrained=None)
            state = {name: value.float() for name, value in read_torchscript(weights).items()}
            clip.load_state_dict({name: value for name, value in state.items() if name not in _ARCHIVED})
            return clip
        if Path(weights).is_file() and Path(weights).suffix != ".safetensors":
            read_checkpoint(weights)  # rejects files with code, which torch's own message advises to run
        return open_clip.create_model(config, pretrained=weights, require_pretrained=True)
    except (CheckpointError, ConfigError):
        raise
    except Exception as error:
        raise CheckpointError(
            f"the weights {weights!r} of {config!r} are not available ({error}); set `pretrained` to a file, put them "
            f"in the Hugging Face cache, or leave `pretrained` out"
        ) from error


def _check_quick_gelu(config: str, weights: str) -> None:
    """Check that a configuration has the GELU of OpenAI's CLIPs, as checkpoints store the configuration."""
    if not clip_computation(config)["clip.quick_gelu"]:
        raise ConfigError(
            f"{Path(weights).name!r} has OpenAI's weights, trained with a quick GELU, and {config!r} has the exact "
            f"one; expected a configuration with quick_gelu, such as '{config}-quickgelu'"
        )


def clip_computation(config: str | dict[str, Any]) -> dict[str, Any]:
    """Options of an open_clip configuration that the shapes of weights do not determine, by name.

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
    """Features of all tokens in the joint space, not normalised: ids ``(N, T)`` to ``(N, T, D)``."""
    length = tokens.shape[1]
    x = clip.token_embedding(tokens) + clip.positional_embedding[:length]  # (N, T, width of the text tower)
    x = clip.transformer(x, attn_mask=clip.attn_mask[:length, :length])
    return clip.ln_final(x) @ clip.text_projection


def pad_texts(captions: Sequence[str], vocabulary: Vocabulary, max_tokens: int) -> Tensor:
    """Padded token ids of captions, ``(N, T)``; longer ones are truncated to ``max_tokens`` with an end token."""
    special = vocabulary.special
    rows = [vocabulary.encode(caption) for caption in captions]
    rows = [ids if len(ids) <= max_tokens else [*ids[: max_tokens - 1], special.eos] for ids in rows]
    padded = torch.full((len(rows), max(map(len, rows), default=2)), special.pad)
    for row, ids in zip(padded, rows, strict=True):
        row[: len(ids)] = torch.tensor(ids)
    return padded


def eot_pooling(x: Tensor, tokens: Tensor, end: int) -> Tensor:
    """Features at the first end token (CLIP's EOT pooling): ``(N, T, D)`` to ``(N, D)``."""
    return x[torch.arange(len(x), device=x.device), (tokens == end).int().argmax(1)]
