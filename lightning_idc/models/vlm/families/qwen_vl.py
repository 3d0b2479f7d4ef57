"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: images of any size, positions in three parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor

from lightning_idc.models.vlm.families.base import Family


class QwenVL(Family):
    """Qwen2-VL; the tower reads the patches of all images as one sequence; both images of a pair have equal grids."""

    vision = ("model.visual",)
    blocks = "model.visual.blocks"
    gate = "model.visual.merger"
    is_row_major = False
    only_embeds = True
    image_text = "<|vision_start|><|image_pad|><|vision_end|>"
    special_tokens: ClassVar = {
        "image_token": "<|image_pad|>",
        "video_token": "<|video_pad|>",
        "vision_bos_token": "<|vision_start|>",
        "vision_eos_token": "<|vision_end|>",
    }

    def width(self, model: Any) -> int:
        tower = model.config.vision_config
        # in Qwen2-VL hidden_size is the width after the merger
        return tower.embed_dim if tower.model_type == "qwen2_vl_vision" else tower.hidden_size

    def processor(self, config: Any, tokenizer: Any) -> Any:
        from transformers import Qwen2_5_VLProcessor, Qwen2VLImageProcessor, Qwen2VLVideoProcessor

        self._set_token_ids(config, tokenizer)
        return Qwen2_5_VLProcessor(self._images(config, Qwen2VLImageProcessor), tokenizer, Qwen2VLVideoProcessor())

    def _set_token_ids(self, config: Any, tokenizer: Any) -> None:
        config.image_token_id, config.video_token_id = tokenizer.image_token_id, tokenizer.video_token_id
        config.vision_start_token_id = tokenizer.vision_bos_token_id
        config.vision_end_token_id = tokenizer.vision_eos_token_id

    def _images(self, config: Any, kind: Any) -> Any:
        tower = config.vision_config
        cell = tower.patch_size * tower.spatial_merge_size
        return kind(
            patch_size=tower.patch_size,
            temporal_patch_size=tower.temporal_patch_size,
            merge_size=tower.spatial_merge_size,
            size={"shortest_edge": 4 * cell**2, "longest_edge": 1024 * cell**2},
        )

    def pixels(self, model: Any, processor: Any, images: Sequence[Tensor]) -> dict[str, Tensor]:
        return dict(processor.image_processor([image for pair in images for image in pair], return_tensors="pt"))

    def tower_arguments(self, model: Any, pixels: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Any]]:
        from transformers import vision_utils

        tower, grid = model.model.visual, pixels["image_grid_thw"]
        config = tower.config
        bounds = vision_utils.get_vision_cu_seqlens(grid)
        to_device = {
            "image_position_ids": vision_utils.get_vision_position_ids(grid, config.spatial_merge_size),
            "image_cu_seqlens": bounds,
        }
        on_cpu: dict[str, Any] = {"image_grid_thw": grid, "image_max_seqlen": longest_segment(bounds)}
        if hasattr(config, "fullatt_block_indexes"):
            index, windows = vision_utils.get_vision_window_index(
                grid, config.spatial_merge_size, config.window_size, config.patch_size
            )
            to_device |= {"image_window_index": index, "image_cu_window_seqlens": windows}
            on_cpu["image_max_window_seqlen"] = longest_segment(windows)
        return to_device, on_cpu

    def patches_per_pair(self, pixels: dict[str, Tensor]) -> list[int] | None:
        return pixels["image_grid_thw"].prod(-1).view(-1, 2).sum(-1).tolist()


class Qwen3VL(QwenVL):
    """Qwen3-VL; features of earlier tower layers also enter the first layers of the language model (DeepStack)."""

    only_embeds = False

    def tower_arguments(self, model: Any, pixels: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Any]]:
        from transformers import vision_utils

        to_device, on_cpu = super().tower_arguments(model, pixels)
        tower = model.model.visual
        indices, weights = vision_utils.get_vision_interpolation_indices_and_weights(
            pixels["image_grid_thw"],
            num_grid_per_side=tower.num_grid_per_side,
            mode=tower.interpolation_mode,
            align_corners=tower.interpolation_align_corners,
            spatial_merge_size=tower.config.spatial_merge_size,
        )
        return {**to_device, "image_interp_indices": indices, "image_interp_weights": weights}, on_cpu

    def processor(self, config: Any, tokenizer: Any) -> Any:
        from transformers import Qwen2VLImageProcessor, Qwen3VLProcessor, Qwen3VLVideoProcessor

        self._set_token_ids(config, tokenizer)
        return Qwen3VLProcessor(self._images(config, Qwen2VLImageProcessor), tokenizer, Qwen3VLVideoProcessor())


def longest_segment(bounds: Tensor) -> int:
    """Length of the longest segment; ``bounds`` are the segment boundaries."""
    return int((bounds[1:] - bounds[:-1]).max())
