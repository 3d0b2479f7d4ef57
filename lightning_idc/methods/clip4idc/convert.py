"""Official CLIP4IDC checkpoints (``pytorch_model.bin.*``) as modules of this library, weight by weight."""

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
"""Width of an attention head of every CLIP of OpenAI."""

# parts of the official decoder with the same shape
_RENAMED = {
    "decoder.embeddings.LayerNorm.": "norm_words.",
    "decoder.classifier.cls.predictions.transform.dense.": "transform.0.",
    "decoder.classifier.cls.predictions.transform.LayerNorm.": "transform.2.",
    "decoder.classifier.cls.predictions.bias": "bias",
}
_LAYERS = {"encoder": "memory_layers", "decoder": "decoder_layers"}
_IN_ENCODER = {
    "slf_attn.output.dense.": "out.",
    "slf_attn.output.LayerNorm.": "norm_attention.",
    "intermediate.dense.": "feed.0.",
    "output.dense.": "feed.2.",
    "output.LayerNorm.": "norm_feed.",
}
_IN_DECODER = {
    **_IN_ENCODER,
    "slf_attn.output.dense.": "out_self.",
    "slf_attn.output.LayerNorm.": "norm_self.",
    "enc_attn.output.dense.": "out_cross.",
    "enc_attn.output.LayerNorm.": "norm_cross.",
}
# stored twice by the official code, which shares them between the decoder and CLIP's text tower
_SHARED = {
    "decoder.embeddings.word_embeddings.weight": "clip.token_embedding.weight",
    "decoder.embeddings.position_embeddings.weight": "clip.positional_embedding",
    "decoder.classifier.cls.predictions.decoder.weight": "clip.token_embedding.weight",
}
_PROJECTION = re.compile(r"(slf_attn|enc_attn)\.att\.(query|key|value)\.")


@reads_file("checkpoint")
def convert(checkpoint: Path, intra_layers: int | None = None, heads: int = 8) -> Clip4Idc | Clip4IdcRetrieval:
    """Module of an official checkpoint: Clip4Idc where it holds a decoder, Clip4IdcRetrieval otherwise.

    Args:
        checkpoint: file of the official training code.
        intra_layers: blocks of the image tower that encode each image separately, which the file does not show; all
            but 3, the official setting, when None.
        heads: attention heads of the decoder, which the file does not show.

    Raises:
        CheckpointError: the file is not such a checkpoint, or holds an unknown weight.
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
    """As :func:`convert`, from a state dict with official names.

    Args:
        state: weights by name.
        intra_layers: as in :func:`convert`.
        heads: as in :func:`convert`.
        vocabulary: words of the text tower; CLIP's in all official files.
        name: name of the checkpoint, for messages.

    Raises:
        CheckpointError: a weight is missing, unknown, or differs from the one it should be shared with.
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
    """open_clip's configuration of the CLIP inside."""
    width, _, patch, _ = state["clip.visual.conv1.weight"].shape
    grid = round((state["clip.visual.positional_embedding"].shape[0] - 1) ** 0.5)
    context, text_width = state["clip.positional_embedding"].shape

    def blocks(prefix: str) -> int:
        return len({key.removeprefix(prefix).split(".")[0] for key in state if key.startswith(prefix)})

    return {
        "embed_dim": state["clip.text_projection"].shape[1],
        "quick_gelu": True,
        "vision_cfg": {
            "image_size": patch * grid,
            "layers": blocks("clip.visual.transformer.resblocks."),
            "width": width,
            "head_width": HEAD_WIDTH,
            "patch_size": patch,
        },
        "text_cfg": {
            "context_length": context,
            "width": text_width,
            "heads": text_width // HEAD_WIDTH,
            "layers": blocks("clip.transformer.resblocks."),
        },
    }


def _encoder(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    weights = {key: value for key, value in state.items() if key.startswith("clip.")}
    before, after = weights.pop("clip.visual.bef_embedding"), weights.pop("clip.visual.aft_embedding")
    weights["side"] = torch.stack([before, after])
    weights["joint_position"] = weights.pop("clip.visual.joint_positional_embedding")
    for part in ("weight", "bias"):
        weights[f"ln_mid.{part}"] = weights.pop(f"clip.visual.ln_mid.{part}")
    return weights


def _decoder(state: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}
    projections: dict[str, dict[str, Tensor]] = {}
    for key, value in state.items():
        if key.startswith("clip."):
            continue
        if key in _SHARED:
            if not torch.equal(value, state[_SHARED[key]]):
                raise CheckpointError(f"{name}: {key!r} differs from {_SHARED[key]!r}, with which it should be shared")
            continue
        target = _target(key)
        if target is None:
            raise CheckpointError(f"{name} holds {key!r}, which is not a weight of CLIP4IDC")
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
    """Name in this library of an official weight; queries, keys and values still separate."""
    for official, name in _RENAMED.items():
        if key.startswith(official):
            return name + key.removeprefix(official)
    match = re.fullmatch(r"decoder\.(encoder|decoder)\.layer\.(\d+)\.(.+)", key)
    if match is None:
        return None
    kind, number, rest = match.groups()
    start = f"{_LAYERS[kind]}.{number}."
    if _PROJECTION.match(rest):
        return start + rest
    for official, name in (_IN_DECODER if kind == "decoder" else _IN_ENCODER).items():
        if rest.startswith(official):
            return start + name + rest.removeprefix(official)
    return None
