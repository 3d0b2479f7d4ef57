"""Functions of both stages of ProCap: load the image tokenizer, check the image size, load weights of CLIP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_idc.checkpoints.restricted import read_state_dict
from lightning_idc.methods.procap.net import ProcedureEncoder
from lightning_idc.methods.procap.official.encoder import trunk_state
from lightning_idc.nn.image_tokenizer import ImageTokenizer, load_image_tokenizer
from lightning_idc.utils.errors import CheckpointError, ConfigError

TokenizerSource = str | dict[str, Any] | None
"""Checkpoint of an image tokenizer, or the configuration of an image tokenizer whose weights are loaded later."""


def tokenizer_of(source: TokenizerSource) -> tuple[ImageTokenizer, dict[str, Any]]:
    """Load the tokenizer of a checkpoint, or build an untrained one from a configuration.

    Returns:
        tokenizer and its configuration.

    Raises:
        ConfigError: the source is None.
    """
    if source is None:
        raise ConfigError(
            "ProCap needs an image tokenizer; set `tokenizer`, or `procedure`, to a checkpoint that contains one"
        )
    tokenizer = load_image_tokenizer(source) if isinstance(source, str) else ImageTokenizer(**source)
    return tokenizer, tokenizer.config


def image_size_of(options: Mapping[str, Any]) -> tuple[int, int]:
    """Height and width of the images, on which the encoder's position embeddings depend.

    Raises:
        ConfigError: the size is unknown.
    """
    size = options["image_size"]
    if size is None:
        raise ConfigError(
            "ProCap has a position embedding per cell and needs the size of the images; set the model's "
            "`image_size: [height, width]`, or the data module's `image_size`"
        )
    return int(size[0]), int(size[1])


def start_from_clip(encoder: ProcedureEncoder, weights: str) -> None:
    """Initialise the layers of an encoder with the first visual blocks of OpenAI's CLIP.

    Raises:
        CheckpointError: the file is missing, or its blocks are too few or differ in width.
    """
    blocks = trunk_state(read_state_dict(weights), "visual.transformer.resblocks.")
    layers = {name: blocks.get(name) for name in encoder.state_dict() if name.startswith("layers.")}
    try:
        encoder.load_state_dict({name: value for name, value in layers.items() if value is not None}, strict=False)
    except RuntimeError as error:
        raise CheckpointError(f"the visual blocks in {weights!r} have another width: {error}") from error
    missing = [name for name, value in layers.items() if value is None]
    if missing:
        raise CheckpointError(
            f"{weights!r} has no {missing[0]!r} among its `visual.transformer.resblocks`; expected a state dict of "
            f"OpenAI's CLIP with at least {len(encoder.layers)} visual blocks"
        )


def frames_of_other_images(captioner: str, folder: str) -> ConfigError:
    """Error for an add-on that changes the images of a captioner that reads stored frames.

    Args:
        captioner: name of the captioner's class.
        folder: folder of the frames.
    """
    return ConfigError(
        f"{captioner} reads the frames in {folder!r}, which were interpolated from the original images, so an add-on "
        f"that changes images has no effect; use ProCap without `explicit_frames`, or leave the images unchanged "
        "(`fill_masked: false` and `image_mask_ratio: 0` of NoiseMasking, `other_images: identical` of "
        "PreferenceOptimization)"
    )
