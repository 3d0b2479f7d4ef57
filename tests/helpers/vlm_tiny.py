"""Tiny random models of every family, and image pairs for them."""

from __future__ import annotations

from typing import Any

import torch

from lightning_idc.data.datamodule import PairDataModule
from lightning_idc.data.source import PairSource
from lightning_idc.images.types import PairSample
from lightning_idc.models.vlm.families import family_of
from lightning_idc.models.vlm.loading import train_tokenizer
from lightning_idc.models.vlm.module import VLMCaptioner

TEXT: dict[str, Any] = dict(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=512,
    tie_word_embeddings=False,
)
MROPE = {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 1e4}
TOWER: dict[str, Any] = dict(
    hidden_size=24, intermediate_size=32, num_hidden_layers=4, num_attention_heads=2, image_size=32, patch_size=8
)
QWEN_TOWER: dict[str, Any] = dict(num_heads=2, patch_size=8, spatial_merge_size=2)

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llava_onevision": dict(
        vision_config={"model_type": "siglip_vision_model", "vision_use_head": False, **TOWER},
        text_config={"model_type": "qwen2", **TEXT},
    ),
    "llava": dict(
        vision_config={"model_type": "clip_vision_model", **TOWER}, text_config={"model_type": "llama", **TEXT}
    ),
    "qwen2_vl": dict(
        vision_config={**QWEN_TOWER, "depth": 3, "embed_dim": 24, "hidden_size": 32, "mlp_ratio": 2},
        text_config={**TEXT, "rope_parameters": MROPE},
    ),
    "qwen2_5_vl": dict(
        vision_config={
            **QWEN_TOWER,
            "depth": 3,
            "hidden_size": 24,
            "out_hidden_size": 32,
            "intermediate_size": 32,
            "window_size": 32,
            "fullatt_block_indexes": [1],
        },
        text_config={**TEXT, "rope_parameters": MROPE},
    ),
    "qwen3_vl": dict(
        vision_config={
            **QWEN_TOWER,
            "depth": 3,
            "hidden_size": 24,
            "out_hidden_size": 32,
            "intermediate_size": 32,
            "deepstack_visual_indexes": [0, 1],
            "num_position_embeddings": 16,
        },
        text_config={**TEXT, "head_dim": 8, "rope_parameters": MROPE},
    ),
    "internvl": dict(
        vision_config={**TOWER, "image_size": [32, 32], "patch_size": [8, 8]},
        text_config={"model_type": "qwen2", **TEXT},
        downsample_ratio=0.5,
    ),
    "idefics3": dict(vision_config=TOWER, text_config={"model_type": "llama", **TEXT}, scale_factor=2),
    "smolvlm": dict(vision_config=TOWER, text_config={"model_type": "llama", **TEXT}, scale_factor=2),
}
CAPTIONS = [
    "the small red cube moved to the left of the sphere",
    "nothing changed",
    "the cylinder is gone",
    "someone painted the big metal ball blue and added two rubber cubes",
]
PROMPTS = {"long": "how do the two pictures differ? name all changes."}


def architecture(model_type: str) -> dict[str, Any]:
    return {"model_type": model_type, **ARCHITECTURES[model_type]}


def tokenizer(model_type: str) -> str:
    return train_tokenizer(CAPTIONS, 320, family_of(model_type).special_tokens.values())


def captioner(model_type: str, **options: Any) -> VLMCaptioner:
    torch.manual_seed(0)
    options = {"prompt": "what changed?", "prompts": PROMPTS, "captions_per_pair": 3, "max_length": 6, **options}
    model = VLMCaptioner(architecture=architecture(model_type), tokenizer=tokenizer(model_type), **options)
    model.build()
    # the usual initialisation gives nearly the same output everywhere, which would hide a wrong mask or position
    for name, parameter in model.net.named_parameters():  # type: ignore[union-attr]
        if parameter.ndim > 1 and "embed" not in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def samples(count: int = 2, size: int = 48) -> list[PairSample]:
    generator = torch.Generator().manual_seed(4)
    images = torch.randint(0, 256, (count, 2, 3, size, size), generator=generator, dtype=torch.uint8)
    captions = [CAPTIONS[:3], CAPTIONS[3:], CAPTIONS[1:3]]
    return [PairSample(f"p{i}", *images[i], captions[i % 3]) for i in range(count)]


# ---- pairs that can be learned in seconds ----------------------------------------------------------------

COLORS = {"red": 0, "green": 1, "blue": 2}


class ColorSource(PairSource):
    """Pairs of grayish images; the left or right half of the second image turns red, green or blue."""

    def __init__(self, size: int, start: int) -> None:
        self.ids = [f"{start + i:03d}" for i in range(size)]

    def __len__(self) -> int:
        return len(self.ids)

    def _change(self, index: int) -> tuple[str, str]:
        number = int(self.ids[index])
        return list(COLORS)[number % 3], ("left", "right")[number // 3 % 2]

    def captions(self, index: int) -> list[str]:
        color, side = self._change(index)
        return [f"the {side} half turned {color}", f"now the {side} half is {color}"]

    def change_type(self, index: int) -> str:
        return self._change(index)[0]

    def load(self, index: int) -> PairSample:
        generator = torch.Generator().manual_seed(int(self.ids[index]))
        before = torch.randint(90, 130, (3, 32, 32), generator=generator, dtype=torch.uint8)
        after = before.clone()
        color, side = self._change(index)
        half = slice(0, 16) if side == "left" else slice(16, 32)
        after[COLORS[color], :, half] += 100
        return PairSample(self.ids[index], before, after, self.captions(index), color)


class ColorPairs(PairDataModule):
    def __init__(self, pairs: int = 24, **options: Any) -> None:
        super().__init__(**options)
        self.pairs = pairs

    def source(self, split: str) -> PairSource:
        return ColorSource(self.pairs if split == "train" else 6, 0 if split == "train" else 600)
