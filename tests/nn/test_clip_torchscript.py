"""OpenAI's TorchScript files. Oracle: features that the authors' model computes with the weights of the archive."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lightning_idc.checkpoints.restricted import is_torchscript, read_torchscript
from lightning_idc.nn.clip import build_clip
from lightning_idc.nn.vocabulary import ClipVocabulary
from lightning_idc.utils.errors import CheckpointError, ConfigError


@pytest.fixture
def parity(shared: Path) -> Path:
    folder = shared / "parity/clip_torchscript"
    if not folder.is_dir():
        pytest.skip("the oracle is not beside this checkout")
    return folder


def test_all_tensors_are_read_as_they_are(parity: Path) -> None:
    found, true = read_torchscript(parity / "archive.pt"), load_file(parity / "weights.safetensors")
    assert set(found) - set(true) == {"input_resolution", "context_length", "vocab_size"}
    assert all(torch.equal(found[name], value) and found[name].dtype == value.dtype for name, value in true.items())


def test_features_are_those_of_the_authors_model(parity: Path, tmp_path: Path) -> None:
    import open_clip

    sizes = json.loads((parity / "meta.json").read_text())["sizes"]
    config = {
        "embed_dim": sizes["embed_dim"],
        "vision_cfg": {
            "image_size": sizes["image_resolution"], "layers": sizes["vision_layers"], "width": sizes["vision_width"],
            "patch_size": sizes["vision_patch_size"], "head_width": 64,
        },
        "text_cfg": {
            "context_length": sizes["context_length"], "vocab_size": sizes["vocab_size"],
            "width": sizes["transformer_width"], "heads": sizes["transformer_heads"],
            "layers": sizes["transformer_layers"],
        },
    }  # fmt: skip
    (tmp_path / "tiny-openai.json").write_text(json.dumps({**config, "quick_gelu": True}))
    (tmp_path / "tiny-exact.json").write_text(json.dumps(config))
    open_clip.add_model_config(tmp_path)
    with pytest.raises(ConfigError, match="'tiny-exact' has the exact one"):  # a checkpoint would be rebuilt with it
        build_clip("tiny-exact", ClipVocabulary(), str(parity / "archive.pt"))
    clip = build_clip("tiny-openai", ClipVocabulary(), str(parity / "archive.pt")).eval()
    io = load_file(parity / "io.safetensors")
    with torch.no_grad():
        torch.testing.assert_close(clip.encode_image(io["image"].float()), io["image_features"], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(clip.encode_text(io["ids"].long()), io["text_features"], atol=1e-4, rtol=1e-4)


def test_no_code_runs_and_other_files_are_refused(parity: Path, tmp_path: Path) -> None:
    torch.save({"a": torch.ones(1)}, tmp_path / "plain.pt")
    assert not is_torchscript(tmp_path / "plain.pt")
    with pytest.raises(CheckpointError, match="is not a TorchScript archive"):
        read_torchscript(tmp_path / "plain.pt")
    short, evil = tmp_path / "short.pt", tmp_path / "evil.pt"
    with zipfile.ZipFile(parity / "archive.pt") as source:
        files = {name: source.read(name) for name in source.namelist()}
    for path, changed in (
        (short, {"archive/data/1": b"0"}),
        (evil, {"archive/data.pkl": b"cos\nsystem\n(S'touch " + bytes(tmp_path / "ran") + b"'\ntR."}),
    ):
        with zipfile.ZipFile(path, "w") as target:
            for name, content in {**files, **changed}.items():
                target.writestr(name, content)
    with pytest.raises(CheckpointError, match="expected 4928 values"):
        read_torchscript(short)
    with pytest.raises(CheckpointError, match="expected a module"):
        read_torchscript(evil)
    assert not (tmp_path / "ran").exists()
    shutil.copy(parity / "archive.pt", tmp_path / "ViT-B-32.pt")
    with pytest.raises(CheckpointError, match="are not available"):  # of another size than its name says
        build_clip("ViT-B-32-quickgelu", ClipVocabulary(), str(tmp_path / "ViT-B-32.pt"))
