"""Merged folders meet the expectations of vLLM's loader; ``test_vllm.py`` runs vLLM itself where it is installed.

The loader takes the class from `architectures`, the weights from the safetensors files in the index (all of them, under
the published names), tokenizer and processor from the folder, and stop tokens from `generation_config`. The oracle is
transformers, whose classes and names vLLM maps to its own: it loads the folder alone, without missing or unexpected
weights, and generates the caption of the captioner.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from helpers.vlm_tiny import captioner, samples
from safetensors import safe_open

from lightning_idc.models.vlm.lora import LoraAdapter
from lightning_idc.models.vlm.module import VLMCaptioner


@pytest.fixture(scope="module", params=["qwen2_5_vl", "llava_onevision"])
def merged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[VLMCaptioner, Path, Path]:
    """A captioner with a LoRA, the folder with the LoRA merged, and the folder of the base model."""
    folder = tmp_path_factory.mktemp(request.param)
    stock = captioner(request.param).save_model(folder / "stock")
    model = VLMCaptioner(model=str(stock), max_length=6)
    model.add_adapter("lora", LoraAdapter, rank=2, alpha=4)
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return model.eval(), model.save_model(folder / "merged", merge=True), stock


def names_of(folder: Path) -> set[str]:
    """Return the names of the weights in the safetensors files, checked against the index if there is one."""
    index = folder / "model.safetensors.index.json"
    files = {"model.safetensors"}
    listed = None
    if index.exists():
        listed = json.loads(index.read_text())["weight_map"]
        files = set(listed.values())
    assert {path.name for path in folder.glob("*.safetensors")} == files
    names: set[str] = set()
    for file in files:
        with safe_open(folder / file, "pt") as weights:  # type: ignore[no-untyped-call]
            names |= set(weights.keys())
    assert listed is None or names == set(listed)
    return names


def test_class_names_and_weights_are_those_of_the_published_model(merged: tuple[VLMCaptioner, Path, Path]) -> None:
    _, folder, stock = merged
    config, published = (json.loads((path / "config.json").read_text()) for path in (folder, stock))
    assert config["architectures"] == published["architectures"] and len(config["architectures"]) == 1
    assert hasattr(transformers, config["architectures"][0]) and config["model_type"] == published["model_type"]
    assert "quantization_config" not in config and "auto_map" not in config
    names = names_of(folder)
    assert names == names_of(stock) and not any("lora" in name or "base_layer" in name for name in names)
    expected = {path.name for path in stock.iterdir()}
    assert {path.name for path in folder.iterdir()} == expected
    assert {"tokenizer.json", "tokenizer_config.json", "generation_config.json"} <= expected


def test_transformers_alone_answers_with_the_caption(merged: tuple[VLMCaptioner, Path, Path]) -> None:
    from transformers import AutoModelForImageTextToText, AutoProcessor

    model, folder, _ = merged
    processor: Any = AutoProcessor.from_pretrained(folder)
    loaded: Any = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    network, info = loaded
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert network.generation_config.eos_token_id is not None
    (sample,) = samples(1)
    images = [torch.stack([sample.before, sample.after])]
    inputs = model.built_net.family.inputs(processor, [model.hparams["prompt"]], images)
    with torch.no_grad():
        ids = network.eval().generate(**inputs, max_new_tokens=6, do_sample=False, repetition_penalty=1.0)
    answer = processor.tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    expected = model.describe(sample.before, sample.after).text
    assert answer.strip() == expected.strip() and expected


def test_large_models_are_sharded_with_an_index(
    merged: tuple[VLMCaptioner, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers splits files above 50 GB; the test lowers this limit to 200 kB."""
    model, folder, _ = merged
    save = transformers.PreTrainedModel.save_pretrained

    def save_in_shards(self: Any, path: Any, **options: Any) -> None:
        save(self, path, max_shard_size="200KB", **options)

    monkeypatch.setattr(transformers.PreTrainedModel, "save_pretrained", save_in_shards)
    model.save_model(tmp_path)
    assert (tmp_path / "model.safetensors.index.json").exists() and len(list(tmp_path.glob("*.safetensors"))) > 1
    assert names_of(tmp_path) == names_of(folder)
