"""Low precision for frozen weights, float32 for trained ones: all trained weights change, frozen ones are cast once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.training import SILENT
from helpers.vlm_tiny import ColorPairs, ColorSource, captioner
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import Callback
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_idc.methods.m3diff.mdp_adapter import MDPAdapter
from lightning_idc.models.vlm.lora import LoRA
from lightning_idc.models.vlm.module import VLMCaptioner
from lightning_idc.utils.errors import ConfigError


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = captioner("qwen2_5_vl")
    for name, parameter in model.net.named_parameters():  # type: ignore[union-attr]
        if parameter.ndim > 1 and "embed" not in name:
            torch.nn.init.normal_(parameter, std=0.02)
    return model.save_model(tmp_path_factory.mktemp("stock"))


class Keep(Callback):
    """Records the trainable weights before the first step."""

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        self.before = {name: p.detach().clone() for name, p in pl_module.named_parameters() if p.requires_grad}


def run(stock: Path, folder: Path, precision: Any, steps: int = 12, **options: Any) -> tuple[VLMCaptioner, Keep]:
    seed_everything(3, workers=True, verbose=False)
    model = VLMCaptioner(
        model=str(stock),
        learning_rates={"vision": 0.2},
        optimizer=lambda groups: torch.optim.AdamW(groups, lr=1e-5),
        **{"prompt": "what changed?", "max_length": 6, **options},
    )
    keep = Keep()
    trainer = Trainer(
        callbacks=[LoRA(rank=4, alpha=8), MDPAdapter(), keep],
        precision=precision,
        max_steps=steps,
        default_root_dir=folder,
        **SILENT,
        limit_val_batches=0,
    )
    trainer.fit(model, ColorPairs(batch_size=6, seed=1))
    return model, keep


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "dtype"), [("bf16-mixed", "auto"), ("bf16-mixed", "float32"), (32, "bfloat16")])
def test_all_that_trains_moves(precision: Any, dtype: str, stock: Path, tmp_path: Path) -> None:
    model, keep = run(stock, tmp_path, precision, dtype=dtype)
    now = dict(model.named_parameters())
    assert {p.dtype for p in now.values() if p.requires_grad} == {torch.float32}
    assert {p.dtype for p in now.values() if not p.requires_grad} == {torch.bfloat16}
    parts = {"visual.blocks": 0, "merger": 0, "lora_A": 0, "lora_B": 0, "adapters.mdp": 0}
    for name, before in keep.before.items():
        parts |= {part: count + 1 for part, count in parts.items() if part in name}
        if "lora_A" in name or "mdp" in name:
            continue  # changes only after the next layer, which is 0 at first
        assert (now[name] != before).float().mean() > 0.9, name
    assert min(parts.values()) > 0
    assert all((now[name] != before).any() for name, before in keep.before.items())
    sample = ColorSource(2, 0).load(0)
    assert model.describe(sample.before, sample.after).log_prob <= 0, "usable without the Trainer's autocast"


@pytest.mark.parametrize("options", [{"dtype": "auto"}, {"dtype": "bfloat16"}])
def test_trained_weights_of_16_bits_are_refused(options: dict[str, Any], stock: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"trainable weights have 16 bits .*bf16-mixed"):
        run(stock, tmp_path, "bf16-true", **options)


class Casts(TorchDispatchMode):
    """Counts conversions of tensors with given shapes to another precision."""

    def __init__(self, shapes: set[torch.Size]) -> None:
        super().__init__()
        self.shapes, self.count = shapes, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._to_copy.default and args[0].shape in self.shapes:
            self.count += (kwargs or {}).get("dtype", args[0].dtype) != args[0].dtype
        return func(*args, **(kwargs or {}))


@pytest.mark.slow
def test_frozen_weights_are_not_cast_at_each_call(stock: Path, tmp_path: Path) -> None:
    counts = {}
    for precision in ("bf16-mixed", 32):
        model, _ = run(stock, tmp_path, precision, steps=1)
        batch = model.eval().collate([ColorSource(2, 0).load(0)])
        language = model.net.model.model.language_model  # type: ignore[union-attr]
        frozen = {p.shape for p in language.parameters() if not p.requires_grad and p.ndim == 2}
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            features = model.encode(batch)
            of_lengths = []
            for length in (3, 6):
                with Casts(frozen) as casts:
                    model.generate(features, max_length=length)
                of_lengths.append(casts.count)
        counts[precision] = of_lengths[1] - of_lengths[0]
    # a LoRA that is folded into its layers is cast once for all tokens
    assert counts["bf16-mixed"] == 0 and counts[32] > 20


@pytest.mark.slow
def test_the_merger_is_a_projector(stock: Path, tmp_path: Path) -> None:
    model, _ = run(stock, tmp_path, 32, steps=1)
    groups = {group["name"]: group for group in model.trainer.optimizers[0].param_groups}
    assert groups["vision"]["lr"] == pytest.approx(2e-6) and groups["language"]["lr"] == pytest.approx(1e-5)
    visual = model.net.model.model.visual  # type: ignore[union-attr]
    merger = {id(p) for p in visual.merger.parameters()}
    assert merger <= {id(p) for p in groups["language"]["params"]}
    tower = {id(p) for p in visual.parameters() if p.requires_grad} - merger
    assert tower == {id(p) for p in groups["vision"]["params"]}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int8"}, "dtype 'int8' is unknown"),
        ({"quantize": "3bit"}, "quantize is '3bit'; expected one of 4bit, 8bit, int4, int8"),
    ],
)
def test_unknown_precisions_are_named(options: dict[str, Any], message: str, stock: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        VLMCaptioner(model=str(stock), **options)


def test_a_missing_extra_is_named(stock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_idc.models.vlm.published.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="needs the package bitsandbytes; `pip install bitsandbytes`"):
        VLMCaptioner(model=str(stock), quantize="4bit").build()
