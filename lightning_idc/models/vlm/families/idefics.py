"""Idefics3 and SmolVLM: SigLIP, pixel shuffle in a connector, a Llama or SmolLM2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor

from lightning_idc.models.vlm.families.base import Family


class Idefics3(Family):
    """Idefics3, with image splitting off, so that each image is one grid."""

    vision = ("model.vision_model",)
    language = ("model.text_model", "lm_head")
    blocks = "model.vision_model.encoder.layers"
    gate = "model.connector"
    image_text = "<image>"
    image_options: ClassVar = {"do_image_splitting": False}
    special_tokens: ClassVar = {
        "fake_image_token": "<fake_token_around_image>",
        "image_token": "<image>",
        "end_of_utterance_token": "<end_of_utterance>",
        "global_image_token": "<global-img>",
    }

    def processor(self, config: Any, tokenizer: Any) -> Any:
        from transformers import Idefics3ImageProcessor, Idefics3Processor

        config.image_token_id = tokenizer.image_token_id
        cells = self._cells(config)
        return Idefics3Processor(self._images(config, Idefics3ImageProcessor), tokenizer, image_seq_len=cells)

    def _cells(self, config: Any) -> int:
        tower = config.vision_config
        return (tower.image_size // tower.patch_size) ** 2 // config.scale_factor**2

    def _images(self, config: Any, kind: Any) -> Any:
        side = {"longest_edge": config.vision_config.image_size}
        return kind(size=side, max_image_size=side, do_image_splitting=False)

    def pixels(self, model: Any, processor: Any, images: Sequence[Tensor]) -> dict[str, Tensor]:
        joined = self.processor_images(processor, images)
        return dict(processor.image_processor(joined, return_tensors="pt", **self.image_options))


class SmolVLM(Idefics3):
    """SmolVLM, like Idefics3; its processor needs the package num2words."""

    def processor(self, config: Any, tokenizer: Any) -> Any:
        from transformers import SmolVLMImageProcessor, SmolVLMProcessor, SmolVLMVideoProcessor

        config.image_token_id = tokenizer.image_token_id
        images = self._images(config, SmolVLMImageProcessor)
        return SmolVLMProcessor(images, tokenizer, SmolVLMVideoProcessor(), image_seq_len=self._cells(config))
