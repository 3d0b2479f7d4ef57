"""Converts official CLIP4IDC checkpoints (``pytorch_model.bin.*``) into modules of this library."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightning_idc.checkpoints.reading import read_checkpoint
from lightning_idc.methods.clip4idc.module import Clip4Idc, Clip4IdcRetrieval
from lightning_idc.nn.vocabulary import CLIP
from lightning_idc.utils.errors import CheckpointError, reads_file

HEAD_WIDTH = 64
"""Width of the attention heads in all of OpenAI's CLIP models."""

# official prefix: prefix here, for weights with the same shape
_RENAMED = {
    "decoder.embeddings.LayerNorm.": "norm_words.",
    "decoder.classifier.cls.predictions.transform.dense.": "transform.0.",
    "decoder.classifier.cls.predictions.transform.LayerNorm.": "transform.2.",
    "decoder.classifier.cls.predictions.bias": "bias",
}
_LAYERS = {"encoder": "memory_layers", "decoder": "decoder_layers"}
_ENCODER_LAYER = {
    "slf_attn.output.dense.": "out.",
    "slf_attn.output.LayerNorm.": "norm_attention.",
    "intermediate.dense.": "feed.0.",
    "output.dense.": "feed.2.",
    "output.LayerNorm.": "norm_feed.",
}
_DECODER_LAYER = {
    **_ENCODER_LAYER,
    "slf_attn.output.dense.": "out_self.",
    "slf_attn.output.LayerNorm.": "norm_self.",
    "enc_attn.output.dense.": "out_cross.",
    "enc_attn.output.LayerNorm.": "norm_cross.",
}
# tied weights of decoder and text tower, which the official code stores twice
_SHARED = {
    "decoder.embeddings.word_embeddings.weight": "clip.token_embedding.weight",
    "decoder.embeddings.position_embeddings.weight": "clip.positional_embedding",
    "decoder.classifier.cls.predictions.decoder.weight": "clip.token_embedding.weight",
}
_PROJECTION = re.compile(r"(slf_attn|enc_attn)\.att\.(query|key|value)\.")


@reads_file("checkpoint")
def convert(checkpoint: Path, intra_layers: int | None = None, heads: int = 8) -> Clip4Idc | Clip4IdcRetrieval:
    """Convert an official checkpoint into a Clip4Idc if it has a decoder, else into a Clip4IdcRetrieval.

    Args:
        checkpoint: file of the official training code.
        intra_layers: number of blocks of the image tower that encode each image separately, which the file does not
            contain; all but 3, the official setting, when None.
        heads: number of attention heads of the decoder, which the file does not contain.

    Raises:
        CheckpointError: the file is not an official checkpoint, or has an unknown weight.
    """
    state = read_checkpoint(checkpoint)
    return from_official(state, intra_layers, heads, name=str(checkpoint))


def from_official(
    state: Mapping[str, Tensor],
    intra_layers: int | None = None,
    heads: int = 8,
    vocabulary: list[str] | str = CLIP,
    name: str = "the checkpoint",
) -> Clip4Idc | Clip4IdcRetrieval:
    """Like :func:`convert`, but from a state dict with official names.

    Args:
        state: weights by name.
        intra_layers: as in :func:`convert`.
        heads: as in :func:`convert`.
        vocabulary: vocabulary of the text tower; ``clip`` for all official files.
        name: name of the checkpoint, for messages.

    Raises:
        CheckpointError: a weight is missing or unknown, or two tied weights differ.
    """
    if "clip.visual.joint_positional_embedding" not in state:
        raise CheckpointError(
            f"{name} has no 'clip.visual.joint_positional_embedding'; expected an official CLIP4IDC file"
        )
    if "clip.visual.conv2.weight" in state:
        raise CheckpointError(f"{name} was trained with --linear_patch 3d, which is not supported; expected 2d")
    clip = _configuration(state)
    options: dict[str, Any] = {
        "clip": clip,
        "intra_layers": clip["vision_cfg"]["layers"] - 3 if intra_layers is None else intra_layers,
        "vocabulary": vocabulary,
    }
    weights = _encoder(state)
    module: Clip4Idc | Clip4IdcRetrieval
    if any(key.startswith("decoder.") for key in state):
        layers = len({key.split(".")[3] for key in state if key.startswith("decoder.decoder.layer.")})
        module = Clip4Idc(**options, decoder_layers=layers, heads=heads)
        weights = {f"encoder.{key}": value for key, value in weights.items()} | _decoder(state, name)
    else:
        module = Clip4IdcRetrieval(**options)
    module.build()
    try:
        module.net.load_state_dict({key: value.float() for key, value in weights.items()})  # type: ignore[union-attr]
    except RuntimeError as error:
        raise CheckpointError(f"{name} does not hold the weights of a CLIP4IDC: {error}") from error
    return module.eval()


def _configuration(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Configuration of the checkpoint's CLIP for open_clip, from the shapes of the weights."""
    width, _, patch, _ = state["clip.visual.conv1.weight"].shape
    grid = round((state["clip.visual.positional_embedding"].shape[0] - 1) ** 0.5)
    context, text_width = state["clip.positional_embedding"].shape

    def num_blocks(prefix: str) -> int:
        return len({key.removeprefix(prefix).split(".")[0] for key in state if key.startswith(prefix)})

    return {
        "embed_dim": state["clip.text_projection"].shape[1],
        "quick_gelu": True,
        "vision_cfg": {
            "image_size": patch * grid,
            "layers": num_blocks("clip.visual.transformer.resblocks."),
            "width": width,
            "head_width": HEAD_WIDTH,
            "patch_size": patch,
        },
        "text_cfg": {
            "context_length": context,
            "width": text_width,
            "heads": text_width // HEAD_WIDTH,
            "layers": num_blocks("clip.transformer.resblocks."),
        },
    }


def _encoder(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of a :class:`PairClip`."""
    weights = {key: value for key, value in state.items() if key.startswith("clip.")}
    before, after = weights.pop("clip.visual.bef_embedding"), weights.pop("clip.visual.aft_embedding")
    weights["side"] = torch.stack([before, after])
    weights["joint_position"] = weights.pop("clip.visual.joint_positional_embedding")
    for part in ("weight", "bias"):
        weights[f"ln_mid.{part}"] = weights.pop(f"clip.visual.ln_mid.{part}")
    return weights


def _decoder(state: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """Weights of a :class:`Clip4IdcNet` without its encoder; query, key and value projections are concatenated."""
    weights: dict[str, Tensor] = {}
    projections: dict[str, dict[str, Tensor]] = {}
    for key, value in state.items():
        if key.startswith("clip."):
            continue
        if key in _SHARED:
            if not torch.equal(value, state[_SHARED[key]]):
                raise CheckpointError(f"{name}: {key!r} differs from {_SHARED[key]!r}; expected tied weights")
            continue
        target = _target(key)
        if target is None:
            raise CheckpointError(f"{name} has an unknown weight {key!r}; expected those of CLIP4IDC")
        match = _PROJECTION.search(target)
        if match is None:
            weights[target] = value
        else:
            projections.setdefault(_PROJECTION.sub(r"\1.", target), {})[match.group(2)] = value
    for key, parts in projections.items():
        if "slf_attn." in key:
            weights[key.replace("slf_attn.", "qkv.")] = torch.cat([parts["query"], parts["key"], parts["value"]])
        else:
            weights[key.replace("enc_attn.", "query.")] = parts["query"]
            weights[key.replace("enc_attn.", "key_value.")] = torch.cat([parts["key"], parts["value"]])
    return weights


def _target(key: str) -> str | None:
    """Name of an official weight in this library, with separate names for query, key and value; None if unknown."""
    for official, name in _RENAMED.items():
        if key.startswith(official):
            return name + key.removeprefix(official)
    match = re.fullmatch(r"decoder\.(encoder|decoder)\.layer\.(\d+)\.(.+)", key)
    if match is None:
        return None
    kind, number, suffix = match.groups()
    prefix = f"{_LAYERS[kind]}.{number}."
    if _PROJECTION.match(suffix):
        return prefix + suffix
    for official, name in (_DECODER_LAYER if kind == "decoder" else _ENCODER_LAYER).items():
        if suffix.startswith(official):
            return prefix + name + suffix.removeprefix(official)
    return None
