"""Generic family: any ``AutoModelForImageTextToText`` that accepts precomputed image features."""

from __future__ import annotations

from inspect import signature
from typing import Any

from torch import nn

from lightning_idc.models.vlm.families.base import Family, image_token
from lightning_idc.utils.errors import ConfigError


class Generic(Family):
    """Family of a model whose class has all necessary accessors; MDP is not supported.

    Args:
        model: the model.
        processor: its processor.

    Raises:
        ConfigError: the model does not accept features in place of pixels.
    """

    def __init__(self, model: Any, processor: Any) -> None:
        self.name = model.config.model_type
        if "mm_encoder_outputs" not in signature(model.forward).parameters:
            raise ConfigError(
                f"models of type {self.name!r} do not accept image features (`mm_encoder_outputs`), so a pair could "
                "not be encoded once; choose a model that does, or register a family with register_family"
            )
        self.vision = (path_of(model, model.get_encoder(modality="image")),)
        self.language = (path_of(model, model.get_decoder()), path_of(model, model.get_output_embeddings()))
        self.image_text = processor.tokenizer.convert_ids_to_tokens(image_token(model.config))

    def depth(self, model: Any) -> int:
        return self.width(model)

    def width(self, model: Any) -> int:
        raise ConfigError(
            f"the generic family does not know which module of {self.name!r} returns the tower features, which MDP "
            "rewrites; use a model of a type that models/vlm/README.md lists for MDP"
        )


def path_of(model: nn.Module, part: nn.Module) -> str:
    """Path of a part within a model."""
    return next(name for name, module in model.named_modules() if module is part)
