"""Layers compiled one by one: equal losses with few graphs, shared by all lengths and numbers of captions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partialmethod
from typing import Any

import pytest
import torch
from helpers.vlm_tiny import captioner, samples
from torch import Tensor, nn
from torch._dynamo.utils import counters

from lightning_idc.models.vlm.compiling import compile_layers
from lightning_idc.models.vlm.lora import LoraAdapter
from lightning_idc.models.vlm.module import VLMCaptioner
from lightning_idc.models.vlm.precision import set_precision

TEXTS = ["the cube is gone", "a ball", "the small cube moved to the left", "nothing", "someone painted the cube"]


def tuned(model_type: str, **options: Any) -> VLMCaptioner:
    model = captioner(model_type, scoring="packed", max_length=24, **options)
    LoraAdapter(rank=2, alpha=4, freeze=["model", "lm_head"]).install(model.built_net)
    torch.manual_seed(2)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.1)
    set_precision(model.built_net, torch.bfloat16)
    return model.train()


def steps(
    model: VLMCaptioner, counts: Sequence[int] = (1, 3, 2), reference: bool = True
) -> tuple[list[Tensor], list[Tensor | None]]:
    """Return scores of batches with several lengths and numbers of captions, and the gradients."""
    scores = []
    for captions in counts:
        for words in (0, 1):
            batch = model.collate(
                [
                    type(sample)(sample.id, sample.before, sample.after, TEXTS[words : words + captions])
                    for sample in samples(2, 64)
                ]
            )
            tokens, mask = batch.tokens[:, :captions], batch.caption_mask[:, :captions]
            with torch.autocast("cpu", torch.bfloat16):
                features = model.encode(batch)
                scores.append(model.score(features, tokens, mask))
                if reference:
                    with torch.no_grad(), model.disable_adapters():
                        scores.append(model.score(features, tokens, mask))
    sum(score.sum() for score in scores if score.requires_grad).backward()  # type: ignore[union-attr]
    return [score.detach() for score in scores], [p.grad for p in model.parameters() if p.requires_grad]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model_type", "backend", "options", "max_graphs"),
    [
        # tracing the backward pass takes ten seconds per graph
        ("qwen2_5_vl", "aot_eager", {"counts": (2,), "reference": False}, 2),
        ("qwen2_vl", "eager", {}, 5),
        ("qwen3_vl", "eager", {}, 5),
        ("llava_onevision", "eager", {}, 5),
    ],
)
def test_compiled_layers_give_the_same_losses_with_few_graphs(
    model_type: str, backend: str, options: dict[str, Any], max_graphs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the test compares graphs, not the code that a compiler generates from them
    monkeypatch.setattr(nn.Module, "compile", partialmethod(_compile_with, backend))
    expected, expected_gradients = steps(tuned(model_type), **options)
    torch._dynamo.reset()
    counters.clear()
    compiled = tuned(model_type)
    compile_layers(compiled.built_net)
    scores, gradients = steps(compiled, **options)
    assert 0 < counters["stats"]["unique_graphs"] <= max_graphs
    assert not counters["graph_break"]
    for score, other in zip(scores, expected, strict=True):
        torch.testing.assert_close(score, other, rtol=1e-2, atol=1e-2)
    for gradient, other in zip(gradients, expected_gradients, strict=True):
        assert (gradient is None) == (other is None)
        if gradient is not None and other is not None:
            torch.testing.assert_close(gradient, other, rtol=5e-2, atol=5e-2 * float(other.abs().max()))


def _compile_with(module: nn.Module, backend: str, **options: Any) -> None:
    module._compiled_call_impl = torch.compile(module._call_impl, backend=backend, **options)


@pytest.mark.slow
def test_decoding_leaves_compiled_layers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.Module, "compile", partialmethod(_compile_with, "eager"))
    model = captioner("qwen2_5_vl")
    batch = model.collate(samples())
    with torch.no_grad():
        expected = [caption.text for caption in model.generate(model.encode(batch))]
        torch._dynamo.reset()
        counters.clear()
        compile_layers(model.built_net)
        features = model.encode(batch)
        graphs = counters["stats"]["unique_graphs"]
        assert [caption.text for caption in model.generate(features)] == expected
    assert counters["stats"]["unique_graphs"] == graphs
