"""LLaVA-1.5: trained on single images, so both images of a pair are joined side by side into one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from lightning_idc.models.vlm.families.llava_onevision import LlavaOnevision
from lightning_idc.utils.errors import ConfigError

BAR = 20  # pixels of black between the two images, as in Img-Diff


class Llava(LlavaOnevision):
    """LLaVA-1.5 with both images in one, separated by a black bar of 20 pixels.

    The joined image is padded to a square, since the image processor crops its centre, 336 of 336 x 692 pixels.
    """

    image_text = "<image>"
    special_tokens: ClassVar = {"image_token": "<image>"}
    images_per_pair = 1

    def width(self, model: Any) -> int:
        raise ConfigError(
            "LLaVA-1.5 reads the pair as one image, whose halves no adapter can separate; use LLaVA-OneVision"
        )

    def processor_images(self, processor: Any, images: Sequence[Tensor]) -> list[list[Tensor]]:
        joined = [torch.cat([pair[0], pair.new_zeros(*pair.shape[1:3], BAR), pair[1]], -1) for pair in images]
        return [[self.uncropped(processor, image)] for image in joined]

    def processor(self, config: Any, tokenizer: Any) -> Any:
        from transformers import CLIPImageProcessor, LlavaProcessor

        config.image_token_id = tokenizer.image_token_id
        side = config.vision_config.image_size
        return LlavaProcessor(
            CLIPImageProcessor(size={"shortest_edge": side}, crop_size={"height": side, "width": side}),
            tokenizer,
            patch_size=config.vision_config.patch_size,
            vision_feature_select_strategy=config.vision_feature_select_strategy,
            num_additional_image_tokens=1,
        )

    def pixels(self, model: Any, processor: Any, images: Sequence[Tensor]) -> dict[str, Tensor]:
        joined = [image for (image,) in self.processor_images(processor, images)]
        return dict(processor.image_processor(joined, return_tensors="pt"))
