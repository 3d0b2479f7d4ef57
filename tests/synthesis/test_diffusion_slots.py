"""Prompt-to-prompt and inpainting on a tiny random SDXL: what is shared and what stays as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_idc.synthesis.slots.diffusion import DiffusionInpainter, PromptToPrompt, align


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    from diffusers import AutoencoderKL, EulerDiscreteScheduler, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

    folder = tmp_path_factory.mktemp("tokens")
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


def painter(parts: dict[str, Any], **options: Any) -> PromptToPrompt:
    from diffusers import StableDiffusionXLPipeline

    slot = PromptToPrompt("tiny", dtype="float32", steps=3, size=16, **options)
    slot.use(StableDiffusionXLPipeline(**parts))
    return slot


def test_words_are_aligned() -> None:
    places, shared = align([9, 1, 2, 3, 8, 8], [9, 1, 5, 6, 3, 8])
    assert shared == [True, True, False, False, True, True]
    assert [place for place, both in zip(places, shared, strict=True) if both] == [0, 1, 3, 4]


@pytest.mark.slow
def test_one_caption_twice_is_one_picture_and_another_word_is_another(parts: dict[str, Any]) -> None:
    slot = painter(parts)
    (first, twin), (third, other) = slot.paint([("a cat", "a cat"), ("a cat", "a dog")], [5, 5])
    assert torch.equal(first, twin) and first.shape == (3, 16, 16)
    assert torch.equal(first, third), "the first picture depends on its own caption and seed alone"
    assert not torch.equal(third, other)


def test_shared_attention_keeps_the_twin_closer(parts: dict[str, Any]) -> None:
    pair, seed = [("a cat on a mat", "a dog on a mat")], [7]

    def distance(**options: float) -> float:
        first, twin = painter(parts, **options).paint(pair, seed)[0]
        return float((first.float() - twin.float()).abs().mean())

    assert 0 < distance(cross=1.0, own=1.0) < distance(cross=0.0, own=0.0)


def test_without_control_the_pictures_are_those_of_the_pipeline_itself(parts: dict[str, Any]) -> None:
    from diffusers import StableDiffusionXLPipeline

    got = torch.stack(painter(parts, cross=0.0, own=0.0).paint([("a cat", "a dog")], [3])[0])
    noise = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(3)).repeat(2, 1, 1, 1)
    pipe = StableDiffusionXLPipeline(**parts)
    pipe.set_progress_bar_config(disable=True)
    with torch.inference_mode():
        out = pipe(
            prompt=["a cat", "a dog"], latents=noise, height=16, width=16, num_inference_steps=3, guidance_scale=7.5,
            output_type="pt",
        ).images  # fmt: skip
    assert (got.int() - (out * 255).round().clamp(0, 255).int()).abs().max() <= 1


def test_inpainting_changes_the_mask_only(parts: dict[str, Any], tmp_path: Path) -> None:
    from diffusers import StableDiffusionXLInpaintPipeline

    slot = DiffusionInpainter("tiny", dtype="float32", steps=3, size=16)
    slot.use(StableDiffusionXLInpaintPipeline(**parts))
    generator = torch.Generator().manual_seed(0)
    images = [torch.randint(256, (3, 20, 24), generator=generator, dtype=torch.uint8) for _ in range(2)]
    mask = torch.zeros(20, 24, dtype=torch.bool)
    mask[5:15, 6:18] = True
    filled = slot.fill(images, [mask, mask], [1, 2])
    for image, result in zip(images, filled, strict=True):
        assert torch.equal(result[:, ~mask], image[:, ~mask]) and not torch.equal(result[:, mask], image[:, mask])
    slot.batch_size = 1
    for one, both in zip(slot.fill(images, [mask, mask], [1, 2]), filled, strict=True):
        assert (one.int() - both.int()).abs().max() <= 1, "a picture has its own seed, whatever is painted with it"
