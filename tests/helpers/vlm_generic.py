"""Tiny random models of types without a family of their own, saved like published ones with their real processors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer

from helpers.vlm_tiny import CAPTIONS, MROPE, QWEN_TOWER, TEXT, TOWER
from lightning_idc.models.vlm.loading import END, PAD, train_tokenizer

SIGLIP = {"model_type": "siglip_vision_model", "vision_use_head": False, **TOWER}
QWEN35_TEXT = dict(
    TEXT,
    head_dim=8,
    rope_parameters={**MROPE, "partial_rotary_factor": 1.0},
    layer_types=["linear_attention", "full_attention"],
    linear_key_head_dim=8,
    linear_value_head_dim=8,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_conv_kernel_dim=2,
)
MOE = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
QWEN3_TOWER = {
    **QWEN_TOWER,
    "depth": 2,
    "hidden_size": 24,
    "out_hidden_size": 32,
    "intermediate_size": 32,
    "num_position_embeddings": 16,
}
QWEN_TOKENS = {
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
}
QWEN_IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"


@dataclass(frozen=True)
class Kind:
    """A small version of a model type.

    Args:
        config: options of the model configuration, without token ids.
        processor: makes the processor from tokenizer and configuration.
        image: placeholder of an image in a prompt.
        tokens: special tokens, by the names that the processor expects.
        ids: token of each token id of the configuration, by the name of the id.
    """

    config: dict[str, Any]
    processor: Callable[[Any, Any], Any]
    image: str = "<image>"
    tokens: dict[str, str] = field(default_factory=lambda: {"image_token": "<image>"})
    ids: dict[str, str] = field(default_factory=lambda: {"image_token_id": "<image>"})


def of(name: str) -> Any:
    return getattr(transformers, name)


def patches(kind: str, **options: Any) -> Any:
    sizes = {"shortest_edge": 4 * 16**2, "longest_edge": 64 * 16**2}
    return of(kind)(patch_size=8, temporal_patch_size=2, merge_size=2, size=sizes, **options)


def qwen3(tokenizer: Any, config: Any) -> Any:
    return of("Qwen3VLProcessor")(patches("Qwen2VLImageProcessor"), tokenizer, of("Qwen3VLVideoProcessor")())


def qwen_kind(config: dict[str, Any]) -> Kind:
    ids = {
        "image_token_id": "<|image_pad|>",
        "video_token_id": "<|video_pad|>",
        "vision_start_token_id": "<|vision_start|>",
        "vision_end_token_id": "<|vision_end|>",
    }
    return Kind(config, qwen3, QWEN_IMAGE, QWEN_TOKENS, ids)


def glm4v(tokenizer: Any, config: Any) -> Any:
    return of("Glm4vProcessor")(patches("Glm4vImageProcessor"), tokenizer, of("Glm4vVideoProcessor")())


def gemma3(tokenizer: Any, config: Any) -> Any:
    images = of("Gemma3ImageProcessor")(size={"height": 32, "width": 32}, image_seq_length=4)
    return of("Gemma3Processor")(images, tokenizer, image_seq_length=4)


def gemma4(tokenizer: Any, config: Any) -> Any:
    images = of("Gemma4ImageProcessor")(patch_size=8, max_soft_tokens=70, pooling_kernel_size=2)
    sound = of("Gemma4AudioFeatureExtractor")()
    return of("Gemma4Processor")(sound, images, tokenizer, of("Gemma4VideoProcessor")(), image_seq_length=4)


def pixtral(tokenizer: Any, config: Any) -> Any:
    images = of("PixtralImageProcessor")(patch_size=8, size={"longest_edge": 48})
    return of("PixtralProcessor")(images, tokenizer, patch_size=8, spatial_merge_size=2)


def lighton(tokenizer: Any, config: Any) -> Any:
    images = of("PixtralImageProcessor")(patch_size=8, size={"longest_edge": 48})
    return of("LightOnOcrProcessor")(images, tokenizer, patch_size=8, spatial_merge_size=2)


def llava_next(tokenizer: Any, config: Any) -> Any:
    images = of("LlavaNextImageProcessor")(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}, image_grid_pinpoints=[[32, 64], [64, 32]]
    )
    return of("LlavaNextProcessor")(
        images, tokenizer, patch_size=8, vision_feature_select_strategy="default", num_additional_image_tokens=1
    )


def vip(tokenizer: Any, config: Any) -> Any:
    images = of("CLIPImageProcessor")(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    return of("LlavaProcessor")(
        images, tokenizer, patch_size=8, vision_feature_select_strategy="default", num_additional_image_tokens=1
    )


def lfm2(tokenizer: Any, config: Any) -> Any:
    images = of("Lfm2VlImageProcessor")(
        encoder_patch_size=8, downsample_factor=2, do_image_splitting=False, min_image_tokens=4, max_image_tokens=16
    )
    return of("Lfm2VlProcessor")(images, tokenizer)


def paligemma(tokenizer: Any, config: Any) -> Any:
    images = of("SiglipImageProcessor")(size={"height": 32, "width": 32})
    images.image_seq_length = 16
    return of("PaliGemmaProcessor")(images, tokenizer)


def ovis2(tokenizer: Any, config: Any) -> Any:
    images = of("Ovis2ImageProcessor")(size={"height": 32, "width": 32}, crop_to_patches=False)
    return of("Ovis2Processor")(images, tokenizer, image_seq_length=4)


def aya(tokenizer: Any, config: Any) -> Any:
    images = of("GotOcr2ImageProcessor")(size={"height": 32, "width": 32}, crop_to_patches=False)
    return of("AyaVisionProcessor")(images, tokenizer, patch_size=8, img_size=32, downsample_factor=2)


def cohere2(tokenizer: Any, config: Any) -> Any:
    images = of("Cohere2VisionImageProcessor")(
        size={"height": 32, "width": 32}, patch_size=2, downsample_factor=2, crop_to_patches=False
    )
    return of("Cohere2VisionProcessor")(images, tokenizer)


def video_llama3(tokenizer: Any, config: Any) -> Any:
    images = of("VideoLlama3ImageProcessor")(patch_size=8, merge_size=2, min_pixels=4 * 16**2, max_pixels=64 * 16**2)
    return of("VideoLlama3Processor")(images, tokenizer, of("VideoLlama3VideoProcessor")())


def janus(tokenizer: Any, config: Any) -> Any:
    images = of("JanusImageProcessor")(size={"height": 32, "width": 32}, min_size=8)
    return of("JanusProcessor")(images, tokenizer, num_image_tokens=16)


def deepseek(tokenizer: Any, config: Any) -> Any:
    images = of("DeepseekVLImageProcessor")(size={"height": 32, "width": 32}, min_size=8)
    return of("DeepseekVLProcessor")(images, tokenizer, num_image_tokens=16)


PIXTRAL = {
    "model_type": "pixtral",
    **{k: TOWER[k] for k in ("hidden_size", "intermediate_size", "num_attention_heads", "patch_size")},
    "num_hidden_layers": 2,
    "head_dim": 12,
    "image_size": 64,
}
OVIS = ("<image>", "<IMG_ATOM>", "<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>")
GEMMA_TEXT = dict(TEXT, head_dim=8, sliding_window=16, query_pre_attn_scalar=8)
KINDS: dict[str, Kind] = {
    "qwen3_5": qwen_kind({"vision_config": QWEN3_TOWER, "text_config": QWEN35_TEXT}),
    "qwen3_5_moe": qwen_kind(
        {"vision_config": QWEN3_TOWER, "text_config": {**QWEN35_TEXT, **MOE, "shared_expert_intermediate_size": 16}}
    ),
    "qwen3_vl_moe": qwen_kind(
        {
            "vision_config": {**QWEN3_TOWER, "deepstack_visual_indexes": [0, 1]},
            "text_config": {**TEXT, **MOE, "head_dim": 8, "rope_parameters": MROPE},
        }
    ),
    "glm4v": Kind(
        {
            "vision_config": {
                "depth": 2,
                "hidden_size": 24,
                "out_hidden_size": 32,
                "intermediate_size": 32,
                "num_heads": 2,
                "patch_size": 8,
                "image_size": 32,
            },
            "text_config": {**TEXT, "rope_parameters": {**MROPE, "partial_rotary_factor": 1.0}},
        },
        glm4v,
        "<|begin_of_image|><|image|><|end_of_image|>",
        {
            "image_token": "<|image|>",
            "video_token": "<|video|>",
            "b": "<|begin_of_image|>",
            "e": "<|end_of_image|>",
            "bv": "<|begin_of_video|>",
            "ev": "<|end_of_video|>",
        },
        {
            "image_token_id": "<|image|>",
            "video_token_id": "<|video|>",
            "image_start_token_id": "<|begin_of_image|>",
            "image_end_token_id": "<|end_of_image|>",
            "video_start_token_id": "<|begin_of_video|>",
            "video_end_token_id": "<|end_of_video|>",
        },
    ),
    "gemma3": Kind(
        {
            "vision_config": SIGLIP,
            "text_config": {**GEMMA_TEXT, "layer_types": ["sliding_attention", "full_attention"]},
            "mm_tokens_per_image": 4,
        },
        gemma3,
        "<boi>",
        {"image_token": "<image>", "boi_token": "<boi>", "eoi_token": "<eoi>"},
        {"image_token_id": "<image>", "boi_token_index": "<boi>", "eoi_token_index": "<eoi>"},
    ),
    "gemma4": Kind(
        {
            "vision_config": {
                **{k: v for k, v in TOWER.items() if k != "image_size"},
                "num_key_value_heads": 2,
                "head_dim": 12,
                "pooling_kernel_size": 2,
                "position_embedding_size": 64,
            },
            "text_config": {
                **GEMMA_TEXT,
                "layer_types": ["sliding_attention", "full_attention"],
                "global_head_dim": 8,
                "num_kv_shared_layers": 0,
                "hidden_size_per_layer_input": 0,
                "vocab_size_per_layer_input": 320,
            },
            "audio_config": None,
        },
        gemma4,
        "<image>",
        {
            "image_token": "<image>",
            "boi_token": "<boi>",
            "eoi_token": "<eoi>",
            "audio_token": "<audio>",
            "boa_token": "<boa>",
            "eoa_token": "<eoa>",
            "video_token": "<video>",
        },
        {
            "image_token_id": "<image>",
            "boi_token_id": "<boi>",
            "eoi_token_id": "<eoi>",
            "video_token_id": "<video>",
            "audio_token_id": "<audio>",
        },
    ),
    "mistral3": Kind(
        {"vision_config": PIXTRAL, "text_config": {"model_type": "mistral", **TEXT, "head_dim": 8}},
        pixtral,
        "[IMG]",
        {"image_token": "[IMG]", "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]"},
        {"image_token_id": "[IMG]"},
    ),
    "lighton_ocr": Kind(
        {"vision_config": PIXTRAL, "text_config": {"model_type": "qwen3", **TEXT, "head_dim": 8}},
        lighton,
        "<image>",
        {"image_token": "<image>", "image_break_token": "<break>", "image_end_token": "<imend>"},
    ),
    "llava_next": Kind(
        {
            "vision_config": {"model_type": "clip_vision_model", **TOWER},
            "text_config": {"model_type": "llama", **TEXT},
            "image_grid_pinpoints": [[32, 64], [64, 32]],
        },
        llava_next,
    ),
    "vipllava": Kind(
        {
            "vision_config": {"model_type": "clip_vision_model", **TOWER},
            "text_config": {"model_type": "llama", **TEXT},
            "vision_feature_layers": [-2, -1],
        },
        vip,
    ),
    "lfm2_vl": Kind(
        {
            "vision_config": {
                "model_type": "siglip2_vision_model",
                "vision_use_head": False,
                "num_patches": 16,
                **{k: v for k, v in TOWER.items() if k != "image_size"},
            },
            "text_config": {
                "model_type": "lfm2",
                **TEXT,
                "layer_types": ["conv", "full_attention"],
                "block_auto_adjust_ff_dim": False,
                "conv_L_cache": 3,
            },
            "projector_hidden_size": 32,
            "downsample_factor": 2,
        },
        lfm2,
        "<image>",
        {
            "image_token": "<image>",
            "image_start_token": "<|image_start|>",
            "image_end_token": "<|image_end|>",
            "image_thumbnail": "<|img_thumbnail|>",
        },
    ),
    "paligemma": Kind(
        {
            "vision_config": SIGLIP,
            "text_config": {"model_type": "gemma", **TEXT, "head_dim": 8},
            "projection_dim": 32,
        },
        paligemma,
    ),
    "ovis2": Kind(
        {
            "vision_config": {
                **{k: v for k, v in TOWER.items()},
                "hidden_stride": 2,
                "vocab_size": 64,
                "num_visual_indicator_tokens": 5,
            },
            "text_config": {"model_type": "qwen2", **TEXT},
            "hidden_size": 32,
        },
        ovis2,
        "<image>",
        {f"t{i}": name for i, name in enumerate(OVIS)},
        {"image_token_id": "<IMG_ATOM>"},
    ),
    "aya_vision": Kind(
        {
            "vision_config": SIGLIP,
            "text_config": {"model_type": "cohere2", **TEXT, "layer_types": ["sliding_attention", "full_attention"]},
            "downsample_factor": 2,
            "adapter_layer_norm_eps": 1e-6,
        },
        aya,
        "<image>",
        {
            "image_token": "<image>",
            "p": "<|IMG_PATCH|>",
            "s": "<|START_OF_IMG|>",
            "e": "<|END_OF_IMG|>",
            "t": "TILE",
            "g": "TILE_GLOBAL",
        },
        {"image_token_id": "<|IMG_PATCH|>"},
    ),
    "cohere2_vision": Kind(
        {
            "vision_config": SIGLIP,
            "text_config": {"model_type": "cohere2", **TEXT, "layer_types": ["sliding_attention", "full_attention"]},
            "downsample_factor": 2,
            "alignment_intermediate_size": 48,
        },
        cohere2,
        "<|IMG_PATCH|>",
        {
            "image_token": "<|IMG_PATCH|>",
            "boi_token": "<|START_OF_IMG|>",
            "eoi_token": "<|END_OF_IMG|>",
            "img_line_break_token": "<|IMG_LINE_BREAK|>",
        },
        {"image_token_id": "<|IMG_PATCH|>"},
    ),
    "video_llama_3": Kind(
        {
            "vision_config": {
                "hidden_size": 24,
                "intermediate_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "patch_size": 8,
            },
            "text_config": {"model_type": "qwen2", **TEXT},
        },
        video_llama3,
        "<image>",
        {"image_token": "<image>", "video_token": "<video>"},
        {"image_token_id": "<image>", "video_token_id": "<video>"},
    ),
    "janus": Kind(
        {
            "vision_config": {**TOWER, "mlp_ratio": 2, "projection_dim": 32, "depth": 1},
            "text_config": {"model_type": "llama", **TEXT},
            "vq_config": {
                "embed_dim": 8,
                "num_embeddings": 16,
                "base_channels": 32,
                "channel_multiplier": [1, 1],
                "num_res_blocks": 1,
                "projection_dim": 16,
                "image_token_embed_dim": 8,
                "num_patches": 4,
            },
        },
        janus,
        "<image_placeholder>",
        {
            "image_token": "<image_placeholder>",
            "boi_token": "<begin_of_image>",
            "eoi_token": "<end_of_image>",
        },
        {"image_token_id": "<image_placeholder>"},
    ),
    "deepseek_vl": Kind(
        {
            "vision_config": {"model_type": "siglip_vision_model", "vision_use_head": False, **TOWER},
            "text_config": {"model_type": "llama", **TEXT},
        },
        deepseek,
        "<image_placeholder>",
        {"image_token": "<image_placeholder>"},
        {"image_token_id": "<image_placeholder>"},
    ),
}


def save(kind: str, folder: Path) -> Path:
    """Write a tiny random model of a type, its processor and a chat template, as a published folder holds them."""
    wanted = KINDS[kind]
    special = list(dict.fromkeys(wanted.tokens.values()))
    known = train_tokenizer([*CAPTIONS, "user: assistant: what changed?"], 320, special)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(known),
        pad_token=PAD,
        bos_token=END,
        eos_token=END,
        extra_special_tokens=wanted.tokens,
    )
    config = transformers.AutoConfig.for_model(kind, **wanted.config)
    text = config.get_text_config()
    for part in (config, text):
        part.pad_token_id, part.eos_token_id, part.bos_token_id = tokenizer.pad_token_id, tokenizer.eos_token_id, None
    if kind == "ovis2":
        config.visual_indicator_token_ids = tokenizer.convert_tokens_to_ids(list(OVIS[2:]))
    for name, token in wanted.ids.items():
        setattr(config, name, tokenizer.convert_tokens_to_ids(token))
    processor = wanted.processor(tokenizer, config)
    processor.chat_template = (
        "{% for m in messages %}{{ m['role'] }}: {% for c in m['content'] %}{% if c['type'] == 'image' %}"
        + wanted.image
        + "{% else %}{{ c['text'] }}{% endif %}{% endfor %}<end>{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    processor.save_pretrained(folder)
    config.save_pretrained(folder)
    # some processors and tokenizers add tokens when they are loaded
    text.vocab_size = len(transformers.AutoProcessor.from_pretrained(folder).tokenizer)
    torch.manual_seed(0)
    model = transformers.AutoModelForImageTextToText.from_config(config)
    for name, parameter in model.named_parameters():
        # the usual initialisation gives nearly the same output everywhere, which would hide a wrong mask or position
        if parameter.ndim > 1 and "embed" not in name:
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    return folder
