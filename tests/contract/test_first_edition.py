"""Checkpoints that the first edition wrote, before its modules moved, still load and say the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_idc.core.loading import load_captioner, load_module
from lightning_idc.errors import ConfigError
from lightning_idc.methods import OfficialProCap, OfficialProcedureModel, ProCap, ProcedureModel
from lightning_idc.methods.clip4idc.module import Clip4IdcRetrieval
from lightning_idc.methods.namc.dual_encoder import load_dual_encoder
from lightning_idc.nn.backbones import SmallCNN, load_backbone
from lightning_idc.nn.image_tokenizer import load_image_tokenizer

HERE = Path(__file__).parents[1] / "fixtures" / "first_edition"
EXPECTED: dict[str, dict[str, Any]] = json.loads((HERE / "expected.json").read_text(encoding="utf-8"))
CAPTIONERS = ["pair_transformer", "namc", "clip4idc", "procap_paper", "procap_official", "vlm"]


def pair(size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(size)
    return torch.randint(0, 256, (2, 3, size, size), generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize("name", CAPTIONERS)
def test_a_captioner_says_the_same(name: str) -> None:
    expected = EXPECTED[name]
    caption = load_captioner(HERE / f"{name}.ckpt").describe(*pair(expected["size"]))
    assert caption.text == expected["text"]
    assert caption.log_prob == pytest.approx(expected["log_prob"], abs=1e-5)
    if expected["change_score"] is not None:
        assert caption.change_score == pytest.approx(expected["change_score"], abs=1e-5)


def test_a_retrieval_encoder_embeds_the_same() -> None:
    expected = EXPECTED["clip4idc_retrieval"]
    encoder = load_module(Clip4IdcRetrieval, HERE / "clip4idc_retrieval.ckpt")
    with torch.no_grad():
        found = encoder.embed_pairs(pair(expected["size"])[None])[0, :4]
    torch.testing.assert_close(found, torch.tensor(expected["embedding"]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("variant", ["paper", "official"])
def test_a_first_stage_of_procap_loads(variant: str) -> None:
    module = load_module(ProcedureModel, HERE / f"procedure_{variant}.ckpt")
    assert sum(p.numel() for p in module.built_net.parameters()) > 1000
    assert type(module) is {"paper": ProcedureModel, "official": OfficialProcedureModel}[variant]
    assert "variant" not in module.hparams


def test_what_was_a_variant_is_a_class() -> None:
    assert type(load_captioner(HERE / "procap_official.ckpt")) is OfficialProCap
    assert type(load_captioner(HERE / "procap_paper.ckpt")) is ProCap
    assert "variant" not in OfficialProCap(variant="official", tokenizer={}).hparams
    with pytest.raises(ConfigError, match="OfficialProCap"):
        ProCap(variant="official")


def test_a_checkpoint_stores_the_public_name(tmp_path: Path) -> None:
    module = load_captioner(HERE / "vlm.ckpt")
    module.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["class_path"] == "lightning_idc.methods.VLMCaptioner"
    assert {entry["class_path"] for entry in config["init_args"]["adapters"].values()} == {
        "lightning_idc.methods.LoraAdapter"
    }


def test_pretrained_parts_load() -> None:
    load_backbone(SmallCNN(), HERE / "object_naming.ckpt")
    assert load_image_tokenizer(str(HERE / "tokenizer.ckpt")).codebook_size == 12
    assert load_dual_encoder(HERE / "relevance.ckpt").grid == (4, 4)
