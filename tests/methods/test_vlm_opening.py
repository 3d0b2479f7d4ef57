"""Published models opened by name, asked, saved, and given to other programs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.vlm_tiny import captioner, samples
from PIL import Image
from torch import Tensor

from lightning_idc.core.loading import load_captioner
from lightning_idc.core.types import PairError
from lightning_idc.methods.m3diff.mdp import MDP
from lightning_idc.methods.vlm.asking import Asker
from lightning_idc.methods.vlm.lora import LoraAdapter
from lightning_idc.methods.vlm.module import VLMCaptioner
from lightning_idc.methods.vlm.opening import open_captioner

QUESTIONS = ["what changed?", "is it red? a yes b no", "where?"]


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return captioner("qwen2_5_vl").save_model(tmp_path_factory.mktemp("stock"))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("images")
    (sample,) = samples(1)
    for name, image in (("a", sample.before), ("b", sample.after)):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / f"{name}.png")
    return folder / "a.png", folder / "b.png"


def scores(model: VLMCaptioner) -> Tensor:
    batch = model.eval().collate(samples())
    with torch.no_grad():
        return model.score(model.encode(batch), batch.tokens, batch.caption_mask)


def stirred(model: VLMCaptioner) -> VLMCaptioner:
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)
    return model


def test_a_published_model_describes_without_training(stock: Path, images: tuple[Path, Path]) -> None:
    model = open_captioner(str(stock), prompt="what differs?", device="cpu", max_pixels=1024)
    assert isinstance(model, VLMCaptioner) and not model.training
    caption = model.describe(*images)
    assert caption.log_prob <= 0
    other = open_captioner(str(stock), prompt="what differs?", device="cpu", max_pixels=2304).describe(*images)
    assert other.log_prob != caption.log_prob, "max_pixels and the prompt reach the model"


def test_questions_encode_the_images_once(stock: Path, images: tuple[Path, Path]) -> None:
    model = open_captioner(str(stock))
    assert isinstance(model, VLMCaptioner)
    looks = []
    model.net.model.model.visual.register_forward_hook(lambda *unused: looks.append(1))  # type: ignore[union-attr]
    ask = Asker(model, 6)
    together = ask(images, QUESTIONS)
    assert len(looks) == 1
    assert together == [ask(images, [question])[0] for question in QUESTIONS]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either a model"),
        ({"model": "x", "checkpoint": "y"}, "either a model"),
        ({"model": "x", "device": "tpu:9"}, "there is no device 'tpu:9'"),
        ({"checkpoint": "y", "quantize": "4bit"}, "quantize belong"),
    ],
)
def test_what_does_not_go_together_is_said(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PairError, match=message):
        open_captioner(**options)


def test_answers_longer_than_the_context_are_refused(stock: Path) -> None:
    model = open_captioner(str(stock))
    model.hparams["max_length"] = 500
    with pytest.raises(PairError, match=r"more than the 512 of the model. Set `max_pixels`"):
        model.collate(samples(1, 96))


def test_a_saved_folder_needs_no_base(stock: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(stock, base)
    model = VLMCaptioner(model=str(base), max_length=6)
    model.add_adapter("lora", LoraAdapter, rank=2, alpha=4)
    model.add_adapter("mdp", MDP)
    expected = scores(stirred(model))
    model.save_pretrained(tmp_path / "out")
    shutil.rmtree(base)
    again = load_captioner(tmp_path / "out")
    assert isinstance(again, VLMCaptioner) and torch.equal(scores(again), expected)


@pytest.mark.parametrize("options", [{}, {"use_dora": True}, {"use_rslora": True}])
def test_plain_transformers_reads_what_is_merged(options: dict[str, Any], stock: Path, tmp_path: Path) -> None:
    model = VLMCaptioner(model=str(stock), max_length=6)
    model.add_adapter("lora", LoraAdapter, rank=2, alpha=4, **options)
    before = scores(model)
    expected = scores(stirred(model))
    assert not torch.allclose(before, expected, atol=1e-2)
    model.save_model(tmp_path, merge=True)
    again = VLMCaptioner(model=str(tmp_path), max_length=6)
    again.build()
    torch.testing.assert_close(scores(again), expected, rtol=1e-4, atol=1e-3)
    from transformers import AutoModelForImageTextToText

    loaded: Any = AutoModelForImageTextToText.from_pretrained(tmp_path, output_loading_info=True)
    assert not loaded[1]["missing_keys"] and not loaded[1]["unexpected_keys"]


def test_what_mdp_cannot_do_outside_is_said(stock: Path, tmp_path: Path) -> None:
    model = VLMCaptioner(model=str(stock), max_length=6)
    model.add_adapter("mdp", MDP)
    with pytest.raises(PairError, match="MDP stays a part of this library"):
        model.save_model(tmp_path, merge=True)


def test_a_saved_lora_names_its_base(stock: Path, tmp_path: Path) -> None:
    from peft import PeftConfig

    model = VLMCaptioner(model=str(stock), max_length=6)
    model.add_adapter("lora", LoraAdapter, rank=2, alpha=4)
    model.save_adapters(tmp_path)
    config = json.loads((tmp_path / "lora" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(stock) and config["task_type"] == "CAUSAL_LM"
    assert PeftConfig.from_pretrained(tmp_path / "lora").base_model_name_or_path == str(stock)
