"""LoRA folded into the weights while captions are generated."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from helpers.vlm_tiny import captioner, samples
from torch import nn

from lightning_idc.models.vlm.folding import folded
from lightning_idc.models.vlm.lora import LoraAdapter
from lightning_idc.models.vlm.module import VLMCaptioner


def tuned(**options: Any) -> VLMCaptioner:
    model = captioner("qwen2_5_vl")
    LoraAdapter(rank=2, alpha=4, **options).install(model.built_net)
    torch.manual_seed(3)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.3)
    return model.eval()


def test_without_a_lora_peft_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Generating a caption does not import PEFT in other places either."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "peft"]:
        monkeypatch.delitem(sys.modules, name)
    model = captioner("qwen2_5_vl")
    with torch.no_grad():
        assert model.generate(model.encode(model.collate(samples(1))))
    assert "peft" not in sys.modules


def test_folded_layers_compute_the_same_and_weights_come_back() -> None:
    model = tuned()
    batch = model.collate(samples())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        features = model.encode(batch)
        expected = model.score(features, batch.tokens, batch.caption_mask)
        with folded(model.built_net):
            layer: Any = model.built_net.model.model.language_model.layers[0].self_attn.q_proj
            assert layer.disable_adapters
            torch.testing.assert_close(model.score(features, batch.tokens, batch.caption_mask), expected)
        assert torch.equal(model.score(features, batch.tokens, batch.caption_mask), expected)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with pytest.raises(RuntimeError, match="stop"), folded(model.built_net):
        raise RuntimeError("stop")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_captions_are_written_with_folded_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tuned()
    step = type(model.built_net).step
    states: list[bool] = []

    def recorded(net: Any, *arguments: Any) -> Any:
        states.append(net.model.model.language_model.layers[0].self_attn.q_proj.disable_adapters)
        return step(net, *arguments)

    monkeypatch.setattr(type(model.built_net), "step", recorded)
    with torch.no_grad():
        features = model.encode(model.collate(samples()))
        model.generate(features)
        model.generate(features, samples=2)
        assert states and all(states)
        states.clear()
        with model.disable_adapters():
            model.generate(features)
    layer: Any = model.built_net.model.model.language_model.layers[0].self_attn.q_proj
    assert not layer.disable_adapters and layer.lora_A["default"].weight.requires_grad


@pytest.mark.parametrize("options", [{"use_dora": True}, {"dropout": 0.5}])
def test_what_cannot_be_folded_is_left_as_it_is(options: dict[str, Any]) -> None:
    model = tuned(**options).train()
    with folded(model.built_net):
        layer: Any = model.built_net.model.model.language_model.layers[0].self_attn.q_proj
        assert not layer.disable_adapters


def test_a_tied_head_is_not_folded() -> None:
    model = captioner("qwen2_5_vl")
    model.built_net.lm_head.weight = model.built_net.model.get_input_embeddings().weight
    LoraAdapter(rank=2, alpha=4, targets="lm_head", freeze=["lm_head"]).install(model.built_net)
    head: Any = model.built_net.model.lm_head
    with folded(model.built_net):
        assert not head.disable_adapters
