"""Prompt-to-prompt and inpainting on a tiny random SDXL: what is shared and which pixels stay unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tiny_models import make_sdxl_parts

from lightning_idc.synthesis.models.diffusion import DiffusionInpainter, PromptToPrompt, align


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return make_sdxl_parts(tmp_path_factory.mktemp("tokens"))


def painter(parts: dict[str, Any], **options: Any) -> PromptToPrompt:
    from diffusers import StableDiffusionXLPipeline

    slot = PromptToPrompt("tiny", dtype="float32", steps=3, size=16, **options)
    slot.set_pipeline(StableDiffusionXLPipeline(**parts))
    return slot


def test_words_are_aligned() -> None:
    places, shared = align([9, 1, 2, 3, 8, 8], [9, 1, 5, 6, 3, 8])
    assert shared == [True, True, False, False, True, True]
    assert [place for place, both in zip(places, shared, strict=True) if both] == [0, 1, 3, 4]


@pytest.mark.slow
def test_equal_captions_give_equal_images(parts: dict[str, Any]) -> None:
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

    assert (
        0
        < distance(cross_replace_steps=1.0, self_replace_steps=1.0)
        < distance(cross_replace_steps=0.0, self_replace_steps=0.0)
    )


def test_without_control_images_equal_the_pipeline(parts: dict[str, Any]) -> None:
    from diffusers import StableDiffusionXLPipeline

    got = torch.stack(
        painter(parts, cross_replace_steps=0.0, self_replace_steps=0.0).paint([("a cat", "a dog")], [3])[0]
    )
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
    slot.set_pipeline(StableDiffusionXLInpaintPipeline(**parts))
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
