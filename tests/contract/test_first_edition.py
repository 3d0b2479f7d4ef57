"""Checkpoints that the first edition wrote, before its modules moved, still load and say the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_idc.core.loading import load_captioner, load_module
from lightning_idc.core.module import PairModule
from lightning_idc.errors import ConfigError
from lightning_idc.methods import (
    ObjectNaming,
    OfficialProCap,
    OfficialProcedureModel,
    PairNaming,
    ProCap,
    ProcedureModel,
    RelevancePretraining,
    TokenizerTraining,
)
from lightning_idc.methods.clip4idc.module import Clip4IdcRetrieval, load_tower
from lightning_idc.methods.namc.dual_encoder import load_dual_encoder
from lightning_idc.nn.backbones import SmallCNN, load_backbone
from lightning_idc.nn.image_tokenizer import load_image_tokenizer

HERE = Path(__file__).parents[1] / "fixtures" / "first_edition"
EXPECTED: dict[str, dict[str, Any]] = json.loads((HERE / "expected.json").read_text(encoding="utf-8"))
CLIP = {
    "embed_dim": 8,
    "vision_cfg": {"image_size": 16, "layers": 2, "width": 16, "head_width": 8, "patch_size": 8},
    "text_cfg": {"context_length": 8, "vocab_size": 8, "width": 8, "heads": 2, "layers": 1},
}
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


@pytest.mark.parametrize(
    ("name", "kind"),
    [("object_naming", ObjectNaming), ("tokenizer", TokenizerTraining), ("relevance", RelevancePretraining)],
)
def test_a_pre_training_loads_all_of_its_weights(name: str, kind: type[PairModule]) -> None:
    stored = torch.load(HERE / f"{name}.ckpt", weights_only=True)["state_dict"]
    found = load_module(kind, HERE / f"{name}.ckpt").state_dict()
    assert len(found) == len(stored)
    for key, value in stored.items():
        assert any(key.split(".", 1)[-1] in new and torch.equal(found[new], value) for new in found), key


def test_a_tower_that_named_cells_with_a_matrix_loads(tmp_path: Path) -> None:
    naming = PairNaming(CLIP, 1, classes=[3])
    state = {key.replace("net.backbone.", "").replace("net.", ""): value for key, value in naming.state_dict().items()}
    state["head.weight"] = state["head.weight"][..., 0, 0]
    assert "tower.side" in state
    torch.save({"state_dict": state, "hyper_parameters": dict(naming.hparams)}, tmp_path / "tower.ckpt")
    again = load_module(PairNaming, tmp_path / "tower.ckpt")
    assert all(torch.equal(value, naming.state_dict()[key]) for key, value in again.state_dict().items())
    other = PairNaming(CLIP, 1, classes=[3]).tower
    load_tower(other, tmp_path / "tower.ckpt")
    assert torch.equal(other.side, naming.tower.side) and torch.equal(
        other.clip.visual.proj, naming.tower.clip.visual.proj
    )


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
