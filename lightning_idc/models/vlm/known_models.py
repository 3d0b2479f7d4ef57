"""Configurations of the published models that recipes name, so that `plan` needs neither their files nor a network.

Each entry has the arguments of transformers' ``AutoConfig`` that differ from its defaults and determine shapes.
"""

from __future__ import annotations

from typing import Any

_QWEN2_5_TOWER = {
    "depth": 32,
    "hidden_size": 1280,
    "num_heads": 16,
    "intermediate_size": 3420,
    "window_size": 112,
    "fullatt_block_indexes": [7, 15, 23, 31],
}
_M_ROPE = {"rope_type": "default", "mrope_section": [16, 24, 24], "rope_theta": 1e6}
_QWEN2_7B = {
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
}
_CLIP_LARGE = {
    "model_type": "clip_vision_model",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
    "projection_dim": 768,
}

KNOWN_MODELS: dict[str, dict[str, Any]] = {
    "Qwen/Qwen2.5-VL-3B-Instruct": {
        "model_type": "qwen2_5_vl",
        "tie_word_embeddings": True,
        "vision_config": {**_QWEN2_5_TOWER, "out_hidden_size": 2048},
        "text_config": {
            "hidden_size": 2048,
            "intermediate_size": 11008,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "vocab_size": 151936,
            "tie_word_embeddings": True,
            "rope_parameters": _M_ROPE,
        },
    },
    "Qwen/Qwen2.5-VL-7B-Instruct": {
        "model_type": "qwen2_5_vl",
        "tie_word_embeddings": False,
        "vision_config": {**_QWEN2_5_TOWER, "out_hidden_size": 3584},
        "text_config": {**_QWEN2_7B, "vocab_size": 152064, "rope_parameters": _M_ROPE},
    },
    "Qwen/Qwen3-VL-2B-Instruct": {
        "model_type": "qwen3_vl",
        "tie_word_embeddings": True,
        "vision_config": {
            "depth": 24,
            "hidden_size": 1024,
            "num_heads": 16,
            "intermediate_size": 4096,
            "patch_size": 16,
            "out_hidden_size": 2048,
            "num_position_embeddings": 2304,
            "deepstack_visual_indexes": [5, 11, 17],
        },
        "text_config": {
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 151936,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "mrope_section": [24, 20, 20], "rope_theta": 5e6},
        },
    },
    "llava-hf/llava-1.5-7b-hf": {
        "model_type": "llava",
        "vision_config": _CLIP_LARGE,
        "text_config": {"model_type": "llama", "vocab_size": 32064},
    },
    "llava-hf/llava-1.5-13b-hf": {
        "model_type": "llava",
        "vision_config": _CLIP_LARGE,
        "text_config": {
            "model_type": "llama",
            "hidden_size": 5120,
            "intermediate_size": 13824,
            "num_hidden_layers": 40,
            "num_attention_heads": 40,
            "num_key_value_heads": 40,
            "vocab_size": 32064,
        },
    },
    "llava-hf/llava-onevision-qwen2-7b-ov-hf": {
        "model_type": "llava_onevision",
        "tie_word_embeddings": False,
        "vision_config": {
            "model_type": "siglip_vision_model",
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_hidden_layers": 26,
            "num_attention_heads": 16,
            "image_size": 384,
            "patch_size": 14,
            "vision_use_head": False,
        },
        "text_config": {**_QWEN2_7B, "model_type": "qwen2", "vocab_size": 152064},
    },
    "OpenGVLab/InternVL3-8B-hf": {
        "model_type": "internvl",
        "tie_word_embeddings": False,
        "vision_config": {
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "image_size": [448, 448],
            "patch_size": [14, 14],
            "attention_bias": True,
        },
        "text_config": {**_QWEN2_7B, "model_type": "qwen2", "vocab_size": 151674},
    },
}
"""Arguments of ``AutoConfig`` by hub id, as ``architecture`` of a `VLMCaptioner`."""
