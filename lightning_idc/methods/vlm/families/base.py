"""The part of a vision-language model that depends on its family.

Every model is the stock transformers class, composed and never subclassed: ``from_pretrained`` of a subclass skips
the renaming of weights and leaves parts of the model random, with no more than a line in the log.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor


class Family(ABC):
    """How a model of this family sees a pair. Images are uint8 ``(B, 2, 3, H, W)``."""

    vision: tuple[str, ...] = ("model.vision_tower",)
    """Paths of the vision tower, whose learning rate is the one of the group ``vision``."""
    language: tuple[str, ...] = ("model.language_model", "lm_head")
    """Paths of the language model: what LoRA freezes."""
    blocks: str = "model.vision_tower.encoder.layers"
    """Path of the list of the tower's layers."""
    gate: str = "model.multi_modal_projector"
    """Path of the module whose input is the features of the tower."""
    gate_is_output: bool = False
    """Whether the features are the output of the gate instead."""
    image_text: str
    """How a prompt without a chat template shows one image."""
    special_tokens: ClassVar[dict[str, str]]
    """Tokens that a tokenizer made for a random model needs, by the name that the processor looks for."""
    images_per_pair: int = 2
    rows_of_places: bool = True
    """Whether the tower takes images and gives their places row by row, perhaps behind a class token."""
    image_options: ClassVar[dict[str, Any]] = {}
    """Options of the image processor that keep each image one grid."""

    def depth(self, model: Any) -> int:
        """Number of layers before the gate."""
        return len(model.get_submodule(self.blocks))

    def width(self, model: Any) -> int:
        """Channels of the features at the gate."""
        return model.config.vision_config.hidden_size

    def unused(self, model: Any) -> list[str]:
        """Paths of parts that no pair ever runs through; trained, they would stop distributed training."""
        return []

    @abstractmethod
    def processor(self, config: Any, tokenizer: Any) -> Any:
        """Processor for a model that was made from a configuration; fills in the configuration's token ids."""

    @abstractmethod
    def pixels(self, processor: Any, images: Tensor) -> dict[str, Tensor]:
        """Arguments of the model's ``get_image_features``, on the device of the images."""

    def shown(self, images: Tensor) -> list[list[Tensor]]:
        """Images of each pair as the processor takes them, ``(3, H, W)`` each."""
        return [list(pair) for pair in images]

    def look(self, model: Any, pixels: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Features of B pairs, ``(B, N, D)``, those of the first image first, and what else must be kept of them."""
        features = model.model.get_image_features(**pixels).pooler_output
        joined = features.flatten(0, 1) if isinstance(features, Tensor) else torch.cat(list(features))
        return self.by_pair(joined, pixels), {}

    def by_pair(self, rows: Tensor, pixels: dict[str, Tensor]) -> Tensor:
        """Rows of all images, one below the other, as ``(B, N, D)``."""
        return rows.unflatten(0, (self.pairs(pixels), -1))

    @abstractmethod
    def pairs(self, pixels: dict[str, Tensor]) -> int:
        """B."""

    def told(self, memory: Tensor, extras: dict[str, Tensor]) -> dict[str, Any]:
        """Arguments by which the model takes features of :meth:`look` in place of pixels."""
        from transformers.modeling_outputs import BaseModelOutputWithPooling

        return {"mm_encoder_outputs": {"image": BaseModelOutputWithPooling(pooler_output=self.by_image(memory))}}

    def by_image(self, memory: Tensor) -> Any:
        """``(B, N, D)`` as the model's own list of one ``(N / images, D)`` per image."""
        return list(memory.unflatten(1, (self.images_per_pair, -1)).flatten(0, 1))

    def positions(self, model: Any, ids: Tensor, mask: Tensor, extras: dict[str, Tensor]) -> Tensor:
        """Positions of the prompt's tokens: ``(B, P)``, or ``(B, 3, P)`` where they have three parts."""
        return (mask.long().cumsum(-1) - 1).clamp(min=0)
