"""Training steps on a GPU: no synchronisation with the device, segments in one call, compiled layers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.devices import exact_products, on_gpu
from helpers.training import quiet_trainer
from helpers.vlm_tiny import ColorPairs, captioner, samples
from lightning.pytorch import Callback, seed_everything

from lightning_idc.methods.adpo.preference import PreferenceOptimization
from lightning_idc.methods.policy.references import AdaptersOff
from lightning_idc.models.vlm.lora import LoRA
from lightning_idc.models.vlm.module import VLMCaptioner
from lightning_idc.models.vlm.windows import SEGMENTS


class Waits(Callback):
    """Raises if a forward pass after the first step waits for the device; the backward pass does wait."""

    def on_train_batch_start(self, trainer: Any, *unused: Any) -> None:
        if trainer.global_step:
            torch.cuda.set_sync_debug_mode("error")

    def on_before_backward(self, *unused: Any) -> None:
        torch.cuda.set_sync_debug_mode("default")


@pytest.fixture(autouse=True)
def without_debug_mode() -> Iterator[None]:
    """Reset the debug mode after each test, so that a failing test does not affect the next ones."""
    yield
    if torch.cuda.is_available():
        torch.cuda.set_sync_debug_mode("default")


def train(model: VLMCaptioner, callbacks: list[Callback], folder: Path) -> list[float]:
    losses: list[float] = []

    class Losses(Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *unused: Any) -> None:
            losses.append(float(outputs["loss"]))

    seed_everything(1, verbose=False)
    lora = LoRA(rank=2, alpha=4, freeze=["model", "lm_head"])
    trainer = quiet_trainer(
        "cuda", folder, precision="bf16-mixed", max_steps=4, callbacks=[lora, Losses(), *callbacks], max_epochs=-1
    )
    trainer.fit(model.train(), ColorPairs(batch_size=4))
    return losses


def model_of(model_type: str, **options: Any) -> VLMCaptioner:
    return captioner(
        model_type,
        optimizer=lambda groups: torch.optim.AdamW(groups, lr=1e-3, fused=True),
        **{"captions_per_pair": 1, "scoring": "packed", **options},
    )


@pytest.mark.parametrize("device", [on_gpu("cuda")])
@pytest.mark.parametrize("model_type", ["qwen2_vl", "qwen2_5_vl"])
@pytest.mark.parametrize("captions", [1, 2])
def test_a_step_never_waits_for_the_device(model_type: str, captions: int, device: str, tmp_path: Path) -> None:
    losses = train(model_of(model_type, captions_per_pair=captions), [Waits()], tmp_path)
    assert len(losses) == 4


@pytest.mark.parametrize("device", [on_gpu("cuda")])
@pytest.mark.parametrize("size", [64, 80])
@pytest.mark.parametrize("model_type", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_segments_in_one_call_equal_a_call_for_each(model_type: str, size: int, device: str) -> None:
    model = captioner(model_type).to(device)
    batch = model.collate(samples(2, size)).to(device)
    features = []
    with exact_products(), torch.no_grad():
        for name in (SEGMENTS, "sdpa"):
            model.built_net.model.model.visual.config._attn_implementation_internal = name
            features.append(model.encode(batch).memory)
    torch.testing.assert_close(*features, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("device", [on_gpu("cuda")])
@pytest.mark.parametrize("kind", ["captions", "preferences"])
def test_compiled_layers_learn_alike(kind: str, device: str, tmp_path: Path) -> None:
    losses = []
    for compiled in (None, "layers"):
        callbacks = [PreferenceOptimization(reference=AdaptersOff())] if kind == "preferences" else []
        losses.append(train(model_of("qwen2_5_vl", compile=compiled), callbacks, tmp_path))
    assert losses[1] == pytest.approx(losses[0], rel=2e-2, abs=2e-2)
