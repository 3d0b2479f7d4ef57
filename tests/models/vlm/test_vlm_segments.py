"""Attention of vision towers within images and windows, in one call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.vlm_tiny import captioner, samples
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_idc.models.vlm.windows import SEGMENTS, attend_segments_at_once

QWEN = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")


class Attentions(TorchDispatchMode):
    """Counts calls of attention."""

    calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += "scaled_dot_product" in func.name()
        return func(*args, **(kwargs or {}))


def encoded(model: Any, size: int) -> tuple[Tensor, int]:
    """Return the features of two pairs and the number of attention calls."""
    batch = model.collate(samples(2, size))
    with torch.no_grad(), Attentions() as mode:
        return model.encode(batch).memory, mode.calls


def assert_equal_but_for_rounding(result: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("model_type", QWEN)
@pytest.mark.parametrize(("size", "is_even"), [(64, True), (80, False)])
def test_one_call_gives_what_a_call_for_each_segment_gives(model_type: str, size: int, is_even: bool) -> None:
    model = captioner(model_type)
    tower = model.built_net.model.model.visual
    assert tower.config._attn_implementation == SEGMENTS
    at_once, calls = encoded(model, size)
    assert calls == len(tower.blocks)
    tower.config._attn_implementation_internal = "sdpa"
    one_by_one, many = encoded(model, size)
    assert many > calls
    if is_even or model_type != "qwen2_5_vl":
        assert torch.equal(at_once, one_by_one)
    else:
        assert_equal_but_for_rounding(at_once, one_by_one)


def test_gradients_of_uneven_segments_are_those_of_a_call_for_each() -> None:
    model = captioner("qwen2_5_vl")
    tower = model.built_net.model.model.visual
    gradients = []
    for name in (SEGMENTS, "sdpa"):
        tower.config._attn_implementation_internal = name
        model.zero_grad()
        model.encode(model.collate(samples(2, 80))).memory.pow(2).sum().backward()
        gradients.append(tower.blocks[0].attn.qkv.weight.grad.clone())
    assert_equal_but_for_rounding(*gradients)


def test_pairs_of_several_sizes_are_uneven_segments() -> None:
    model = captioner("qwen2_5_vl")
    both = [samples(2, 64)[0], samples(2, 48)[1]]
    features = []
    for name in (SEGMENTS, "sdpa"):
        model.built_net.model.model.visual.config._attn_implementation_internal = name
        with torch.no_grad():
            features.append(model.encode(model.collate(both)).memory)
    assert_equal_but_for_rounding(*features)


def test_a_tower_of_another_type_is_served_by_the_same_function() -> None:
    from transformers.models.glm4v.configuration_glm4v import Glm4vVisionConfig
    from transformers.models.glm4v.modeling_glm4v import Glm4vVisionModel

    sizes = {"hidden_size": 32, "intermediate_size": 32, "out_hidden_size": 32, "num_heads": 2, "depth": 2}
    torch.manual_seed(0)
    tower = Glm4vVisionModel._from_config(Glm4vVisionConfig(**sizes, patch_size=8, image_size=64))
    grid = torch.tensor([[1, 4, 4], [1, 4, 4]])
    pixels = torch.randn(32, 3 * 2 * 8 * 8)
    with torch.no_grad():
        before = tower(pixels, grid_thw=grid)
        assert attend_segments_at_once(tower) == 2
        with Attentions() as mode:
            after = tower(pixels, grid_thw=grid)
    assert mode.calls == 2 and torch.equal(before.last_hidden_state, after.last_hidden_state)


@pytest.mark.parametrize("implementation", ["eager", "flash_attention_2"])
def test_another_implementation_is_left_alone(implementation: str) -> None:
    tower = captioner("qwen2_5_vl").built_net.model.model.visual
    tower.config._attn_implementation_internal = implementation
    assert attend_segments_at_once(tower) == 0 and tower.config._attn_implementation == implementation
