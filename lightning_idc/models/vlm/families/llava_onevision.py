"""LLaVA-OneVision: SigLIP, a projector and Qwen2; M3Diff's base model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor

from lightning_idc.models.vlm.families.base import Family


class LlavaOnevision(Family):
    """LLaVA-OneVision; with two images per prompt there is no tiling: an image is one grid and one newline feature."""

    image_text = "<image>"
    special_tokens: ClassVar = {"image_token": "<image>", "video_token": "<video>"}

    def depth(self, model: Any) -> int:
        num_layers, feature_layer = super().depth(model), model.config.vision_feature_layer
        return feature_layer if feature_layer >= 0 else num_layers + 1 + feature_layer

    def unused(self, model: Any) -> list[str]:
        # features are taken before the last norm, or from an earlier layer
        unused_layers = range(self.depth(model), len(model.get_submodule(self.blocks)))
        return ["model.vision_tower.post_layernorm", *(f"{self.blocks}.{index}" for index in unused_layers)]

    def processor(self, config: Any, tokenizer: Any) -> Any:
        from transformers import LlavaOnevisionImageProcessor, LlavaOnevisionProcessor, LlavaOnevisionVideoProcessor

        config.image_token_id, config.video_token_id = tokenizer.image_token_id, tokenizer.video_token_id
        config.vision_feature_select_strategy = "full"
        side, patch = config.vision_config.image_size, config.vision_config.patch_size
        size = {"height": side, "width": side}
        config.image_grid_pinpoints = [[side, side]]
        return LlavaOnevisionProcessor(
            LlavaOnevisionImageProcessor(size=size, image_grid_pinpoints=[[side, side]]),
            tokenizer,
            LlavaOnevisionVideoProcessor(size=size),
            num_image_tokens=(side // patch) ** 2,
            vision_feature_select_strategy="full",
        )

    def pixels(self, model: Any, processor: Any, images: Sequence[Tensor]) -> dict[str, Tensor]:
        # two images per prompt, passed as batch_num_images, turn tiling off
        return dict(processor.image_processor(self.processor_images(processor, images), return_tensors="pt"))
