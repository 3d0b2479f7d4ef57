"""InternVL3: InternViT, pixel shuffle, a projector and Qwen2.5."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor

from lightning_idc.models.vlm.families.base import Family


class InternVL(Family):
    """InternVL3 with one tile per image, so that the patches of both images correspond at any aspect ratio."""

    blocks = "model.vision_tower.encoder.layer"
    gate = "model.vision_tower"  # the projector takes four patches shuffled into one
    gate_is_output = True
    image_options: ClassVar = {"crop_to_patches": False}  # the processor ignores its own saved setting
    image_text = "<IMG_CONTEXT>"
    special_tokens: ClassVar = {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<video>",
    }

    def processor(self, config: Any, tokenizer: Any) -> Any:
        from transformers import GotOcr2ImageProcessor, InternVLProcessor, InternVLVideoProcessor

        config.image_token_id = tokenizer.context_image_token_id
        side, patch = config.vision_config.image_size[0], config.vision_config.patch_size[0]
        size = {"height": side, "width": side}
        cells = int((side // patch) ** 2 * config.downsample_ratio**2)
        return InternVLProcessor(
            GotOcr2ImageProcessor(size=size, crop_to_patches=False),
            tokenizer,
            InternVLVideoProcessor(size=size),
            image_seq_length=cells,
        )

    def pixels(self, model: Any, processor: Any, images: Sequence[Tensor]) -> dict[str, Tensor]:
        flat = [image for pair in images for image in pair]
        processed = processor.image_processor(flat, return_tensors="pt", **self.image_options)
        return {"pixel_values": processed["pixel_values"]}
