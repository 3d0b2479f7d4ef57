"""Weights in 4 and 8 bits by bitsandbytes and torchao: loading, captioning, LoRA training and checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.devices import on_gpu
from helpers.vlm_tiny import ARCHITECTURES, ColorPairs, architecture, samples, tokenizer
from lightning.pytorch import Trainer, seed_everything
from torch import Tensor

from lightning_idc.models.loading import load_captioner
from lightning_idc.models.vlm.lora import LoRA, LoraAdapter
from lightning_idc.models.vlm.module import VLMCaptioner
from lightning_idc.models.vlm.opening import open_captioner
from lightning_idc.models.vlm.published import QUANTIZED, quantization
from lightning_idc.utils.errors import ConfigError

CLOSE = {"4bit": 0.1, "8bit": 0.05, "int4": 0.1, "int8": 0.02}
"""Largest allowed relative errors of scores."""


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny Qwen2.5-VL whose widths are multiples of 32."""
    wide: dict[str, Any] = architecture("qwen2_5_vl")
    text, vision = dict(ARCHITECTURES["qwen2_5_vl"]["text_config"]), dict(wide["vision_config"])
    text |= {"hidden_size": 64, "intermediate_size": 64}
    text["rope_parameters"] = {"rope_type": "default", "mrope_section": [4, 2, 2], "rope_theta": 1e4}
    vision |= {"hidden_size": 64, "out_hidden_size": 64, "intermediate_size": 64}
    torch.manual_seed(0)
    wide |= {"text_config": text, "vision_config": vision}
    model = VLMCaptioner(architecture=wide, tokenizer=tokenizer("qwen2_5_vl"), max_length=6)
    model.build()
    for name, parameter in model.built_net.named_parameters():
        if parameter.ndim > 1 and "embed" not in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return model.save_model(tmp_path_factory.mktemp("stock"))


def scores(model: Any) -> Tensor:
    batch = model.eval().collate(samples())
    with torch.no_grad():
        batch = batch.to(next(model.parameters()).device)
        return model.score(model.encode(batch), batch.tokens, batch.caption_mask).cpu()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "device"),
    [*((kind, "cpu") for kind in ("4bit", "8bit", "int8")), *(on_gpu(kind, "cuda") for kind in QUANTIZED)],
)
def test_quantized_weights_are_close_and_tuned_by_lora_alone(
    kind: str, device: str, stock: Path, tmp_path: Path
) -> None:
    pytest.importorskip(QUANTIZED[kind])
    whole = scores(open_captioner(str(stock), device="cpu", dtype="float32"))
    dtype = "auto" if kind == "int4" else "float32"
    model: Any = open_captioner(str(stock), device=device, dtype=dtype, quantize=kind)
    weight = model.built_net.model.model.language_model.layers[0].self_attn.q_proj.weight
    assert "torchao" in type(weight.data).__module__ or weight.dtype in (torch.uint8, torch.int8)
    error = ((scores(model) - whole).abs() / whole.abs().clamp(min=1)).max()
    assert 0 < error < CLOSE[kind]
    if kind == "int4":
        return  # only for captioning

    seed_everything(1, verbose=False)
    tuned = VLMCaptioner(
        model=str(stock), quantize=kind, max_length=6, optimizer=lambda groups: torch.optim.SGD(groups, lr=0.05)
    )
    trainer = Trainer(
        accelerator="gpu" if device == "cuda" else "cpu",
        devices=1,
        precision="bf16-mixed",
        max_steps=2,
        callbacks=[LoRA(rank=2, alpha=4)],
        default_root_dir=tmp_path,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
    )
    trainer.fit(tuned, ColorPairs(batch_size=2))
    trains = [name for name, parameter in tuned.named_parameters() if parameter.requires_grad]
    assert trains and all("lora" in name for name in trains)
    assert any(p.abs().max() > 0 for name, p in tuned.named_parameters() if "lora_B" in name)
    trainer.save_checkpoint(tmp_path / "tuned.ckpt")
    kept = torch.load(tmp_path / "tuned.ckpt", weights_only=True)["state_dict"]
    assert kept.keys() == set(trains), "the model brings its weights again"
    again: Any = load_captioner(tmp_path / "tuned.ckpt")
    for name, value in kept.items():
        assert torch.equal(again.state_dict()[name].cpu(), value.cpu())
    assert torch.isfinite(scores(again)).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "cpu"}, "int4 only on GPUs, not on 'cpu'; use 4bit or int8"),
        ({"device": "cuda", "compute": torch.float32}, "int4 only in bfloat16"),
    ],
)
def test_unsupported_int4_raises_an_error(options: dict[str, Any], message: str) -> None:
    pytest.importorskip("torchao")
    with pytest.raises(ConfigError, match=message):
        quantization("int4", **{"compute": None, **options})


def test_training_on_int4_is_refused(stock: Path) -> None:
    trainer = Trainer(accelerator="cpu", max_steps=1, logger=False, enable_checkpointing=False)
    with pytest.raises(ConfigError, match=r"no gradient.*train with 4bit, 8bit or int8"):
        trainer.fit(VLMCaptioner(model=str(stock), quantize="int4"), ColorPairs(batch_size=2))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["4bit", "8bit", "int8"])
def test_lora_is_not_merged_into_quantized_weights(kind: str, stock: Path, tmp_path: Path) -> None:
    """Oracle: merging into weights that are not quantized, as the error message recommends."""
    pytest.importorskip(QUANTIZED[kind])
    model: Any = open_captioner(str(stock), device="cpu", dtype="float32", quantize=kind)  # type: ignore[arg-type]
    model.add_adapter("lora", LoraAdapter, rank=2, alpha=4)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    before = scores(model)
    for merge in (model.merge_adapters, lambda: model.save_model(tmp_path / "merged", merge=True)):
        with pytest.raises(ConfigError, match="cannot be merged into quantized weights") as raised:
            merge()
        assert "\n" not in str(raised.value) and not (tmp_path / "merged").exists()
    assert torch.equal(scores(model), before)
    whole: Any = open_captioner(str(stock), device="cpu", dtype="float32")
    whole.load_adapters(model.save_adapters(tmp_path / "adapters"))
    expected = scores(whole)
    whole.save_model(tmp_path / "whole", merge=True)
    again = scores(open_captioner(str(tmp_path / "whole"), device="cpu", dtype="float32"))
    torch.testing.assert_close(again, expected, rtol=1e-4, atol=1e-4)
