"""Models with random weights, so small that all are made within a second, in folders with the layout of the hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

WORDS = [
    "<pad>",
    "<unk>",
    "<bos>",
    "<eos>",
    "<image>",
    "a",
    "red",
    "blue",
    "cat",
    "dog",
    "on",
    "the",
    "mat",
    ".",
    "yes",
]


def tokenizer(**special: Any) -> Any:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    core.pre_tokenizer = WhitespaceSplit()
    core.post_processor = TemplateProcessing(single="<bos> $A <eos>", special_tokens=[("<bos>", 2), ("<eos>", 3)])
    return PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", unk_token="<unk>", bos_token="<bos>", eos_token="<eos>", **special
    )


def make_clip(folder: Path) -> Path:
    """CLIP with its processor and tokenizer."""
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel

    torch.manual_seed(0)
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {**size, "vocab_size": len(WORDS), "max_position_embeddings": 77, "eos_token_id": 3, "bos_token_id": 2}
    vision = {**size, "image_size": 16, "patch_size": 8}
    CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)).save_pretrained(folder)
    CLIPImageProcessor(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def make_blip(folder: Path) -> Path:
    """BLIP for image-text retrieval."""
    from transformers import BlipConfig, BlipForImageTextRetrieval, BlipImageProcessor, BlipProcessor

    torch.manual_seed(0)
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {**size, "encoder_hidden_size": 16, "vocab_size": len(WORDS), "max_position_embeddings": 64}
    config = BlipConfig(
        text_config=text, vision_config={**size, "image_size": 16, "patch_size": 8}, image_text_hidden_size=8
    )
    BlipForImageTextRetrieval(config).save_pretrained(folder)
    images = BlipImageProcessor(size={"height": 16, "width": 16})
    BlipProcessor(images, tokenizer()).save_pretrained(folder)
    return folder


def make_sam(folder: Path) -> Path:
    """SAM with its image processor."""
    from transformers import SamConfig, SamImageProcessor, SamModel

    torch.manual_seed(0)
    vision = {
        "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 32, "patch_size": 8,
        "output_channels": 8, "global_attn_indexes": [0], "window_size": 2, "num_pos_feats": 4, "mlp_dim": 16,
    }  # fmt: skip
    decoder = {"hidden_size": 8, "mlp_dim": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
               "iou_head_hidden_dim": 8, "iou_head_depth": 2}  # fmt: skip
    prompt = {"hidden_size": 8, "image_size": 32, "patch_size": 8, "mask_input_channels": 4}
    config = SamConfig(vision_config=vision, mask_decoder_config=decoder, prompt_encoder_config=prompt)
    SamModel(config).save_pretrained(folder)
    SamImageProcessor(size={"longest_edge": 32}, pad_size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


def make_llava(folder: Path) -> Path:
    """LLaVA with its processor and a chat template."""
    from transformers import (
        CLIPImageProcessor,
        CLIPVisionConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
        LlavaProcessor,
    )

    torch.manual_seed(0)
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(**size, image_size=16, patch_size=8),
        text_config=LlamaConfig(**size, vocab_size=len(WORDS), bos_token_id=2, eos_token_id=3, pad_token_id=0),
        image_token_index=WORDS.index("<image>"),
        vision_feature_layer=-1,
    )
    LlavaForConditionalGeneration(config).save_pretrained(folder)
    template = (
        "{% for m in messages %}{% for c in m['content'] %}"
        "{% if c['type'] == 'image' %} <image> {% else %}{{ c['text'] }}{% endif %}{% endfor %}{% endfor %}"
    )
    LlavaProcessor(
        CLIPImageProcessor(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}),
        tokenizer(extra_special_tokens={"image_token": "<image>"}),
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=template,
    ).save_pretrained(folder)
    return folder


def make_llama(folder: Path, layers: int = 1) -> Path:
    """A language model without a chat template."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(WORDS), hidden_size=16, intermediate_size=32, num_hidden_layers=layers, num_attention_heads=2,
        bos_token_id=2, eos_token_id=3, pad_token_id=0,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def make_sdxl_parts(folder: Path) -> dict[str, Any]:
    """Components of an SDXL pipeline; its vocabulary is written to the folder."""
    from diffusers import AutoencoderKL, EulerDiscreteScheduler, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

    letters = [chr(code) for code in range(97, 123)]
    vocabulary = [*letters, *(letter + "</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(vocabulary)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    words = CLIPTokenizer.from_pretrained(folder, model_max_length=77)
    torch.manual_seed(0)
    config = CLIPTextConfig(
        vocab_size=len(vocabulary), hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        projection_dim=16, bos_token_id=52, eos_token_id=53, pad_token_id=53,
    )  # fmt: skip
    unet = UNet2DConditionModel(
        block_out_channels=(16, 32), layers_per_block=1, sample_size=8, in_channels=4, out_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=(2, 4), use_linear_projection=True, addition_embed_type="text_time",
        addition_time_embed_dim=8, transformer_layers_per_block=(1, 1),
        projection_class_embeddings_input_dim=6 * 8 + 16, cross_attention_dim=32, norm_num_groups=8,
    )  # fmt: skip
    vae = AutoencoderKL(
        block_out_channels=[8, 8], in_channels=3, out_channels=3, latent_channels=4, norm_num_groups=4,
        down_block_types=["DownEncoderBlock2D"] * 2, up_block_types=["UpDecoderBlock2D"] * 2, sample_size=16,
    )  # fmt: skip
    return {
        "text_encoder": CLIPTextModel(config), "text_encoder_2": CLIPTextModelWithProjection(config),
        "tokenizer": words, "tokenizer_2": words, "unet": unet, "vae": vae,
        "scheduler": EulerDiscreteScheduler(),
    }  # fmt: skip
