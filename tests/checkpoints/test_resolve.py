"""Weights by name, file, folder and hub id. Oracle: the same captioner loaded by its path."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from helpers.tiny import TinyCaptioner
from huggingface_hub import constants

import lightning_idc
from lightning_idc.checkpoints.resolve import read_named, resolve
from lightning_idc.checkpoints.shipped import SHIPPED, shipped_models
from lightning_idc.models.loading import load_captioner
from lightning_idc.models.pair_transformer.module import PairTransformer
from lightning_idc.nn.backbones import load_backbone
from lightning_idc.utils.errors import CheckpointError


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Put a shipped captioner into the hub cache, disable the network, and return its hub id."""
    commit, repository = "0" * 40, tmp_path / "cache" / "models--someone--boards"
    shutil.copytree(SHIPPED / "pcb", repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return "someone/boards"


@pytest.mark.slow
def test_what_push_wrote_is_opened_by_its_id(hub: str) -> None:
    by_path = load_captioner(SHIPPED / "pcb").state_dict()
    for captioner in (
        lightning_idc.load(hub, device="cpu"),
        load_captioner(hub),
        lightning_idc.load("pcb", device="cpu"),
    ):
        assert all(torch.equal(value, by_path[name]) for name, value in captioner.state_dict().items())


@pytest.mark.slow
def test_training_starts_from_a_name_a_folder_and_a_hub_id(hub: str) -> None:
    weights = read_named(SHIPPED / "pcb")["state_dict"]
    for name in ("pcb", str(SHIPPED / "pcb"), hub):
        captioner = PairTransformer(init_from=name, backbone="difference", counts=7, freeze_backbone=True)
        captioner.build()
        state = captioner.state_dict()
        assert state.keys() == weights.keys() and all(torch.equal(state[key], weights[key]) for key in weights)
        load_backbone(captioner.built_net.backbone, name)


def test_a_folder_and_a_file_of_one_captioner_hold_the_same(tmp_path: Path) -> None:
    captioner = TinyCaptioner(vocabulary=["<pad>", "<bos>", "<eos>", "<unk>", "red"])
    captioner.build()
    content = read_named(captioner.save_pretrained(tmp_path / "tiny"))
    assert content["class_path"].endswith("TinyCaptioner")
    assert all(torch.equal(content["state_dict"][name], value) for name, value in captioner.state_dict().items())


def test_a_name_that_is_nothing_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert shipped_models().keys() == {"clevr", "pcb", "web"} == set(lightning_idc.list_models())
    with pytest.raises(CheckpointError, match="there is no checkpoint 'pbc'; did you mean 'pcb'"):
        resolve("pbc")
    with pytest.raises(CheckpointError, match=r"there is no checkpoint 'gone\.ckpt'"):
        resolve("gone.ckpt")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        CheckpointError, match="there is no folder 'nobody/nothing', it is not in the Hugging Face cache"
    ):
        resolve("nobody/nothing")
