"""OpenAI's TorchScript files. Oracle: features of OpenAI's model with the weights of the archive."""

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
        pytest.skip("shared/parity is missing")
    return folder


def test_read_torchscript_equals_weights_of_archive(parity: Path) -> None:
    state, expected = read_torchscript(parity / "archive.pt"), load_file(parity / "weights.safetensors")
    assert set(state) - set(expected) == {"input_resolution", "context_length", "vocab_size"}
    assert all(torch.equal(state[name], value) and state[name].dtype == value.dtype for name, value in expected.items())


def test_features_equal_openai_model(parity: Path, tmp_path: Path) -> None:
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
    with pytest.raises(ConfigError, match="'tiny-exact' has the exact one"):
        build_clip("tiny-exact", ClipVocabulary(), str(parity / "archive.pt"))
    clip = build_clip("tiny-openai", ClipVocabulary(), str(parity / "archive.pt")).eval()
    io = load_file(parity / "io.safetensors")
    with torch.no_grad():
        torch.testing.assert_close(clip.encode_image(io["image"].float()), io["image_features"], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(clip.encode_text(io["ids"].long()), io["text_features"], atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_read_torchscript_runs_no_code_and_rejects_other_files(parity: Path, tmp_path: Path) -> None:
    torch.save({"a": torch.ones(1)}, tmp_path / "plain.pt")
    assert not is_torchscript(tmp_path / "plain.pt")
    with pytest.raises(CheckpointError, match="is not a TorchScript archive"):
        read_torchscript(tmp_path / "plain.pt")
    truncated, malicious = tmp_path / "short.pt", tmp_path / "evil.pt"
    with zipfile.ZipFile(parity / "archive.pt") as source:
        files = {name: source.read(name) for name in source.namelist()}
    for path, changed in (
        (truncated, {"archive/data/1": b"0"}),
        (malicious, {"archive/data.pkl": b"cos\nsystem\n(S'touch " + bytes(tmp_path / "ran") + b"'\ntR."}),
    ):
        with zipfile.ZipFile(path, "w") as target:
            for name, content in {**files, **changed}.items():
                target.writestr(name, content)
    with pytest.raises(CheckpointError, match="expected 4928 values"):
        read_torchscript(truncated)
    with pytest.raises(CheckpointError, match="expected a module"):
        read_torchscript(malicious)
    assert not (tmp_path / "ran").exists()
    shutil.copy(parity / "archive.pt", tmp_path / "ViT-B-32.pt")
    with pytest.raises(CheckpointError, match="are not available"):  # the archive has other sizes than ViT-B-32
        build_clip("ViT-B-32-quickgelu", ClipVocabulary(), str(tmp_path / "ViT-B-32.pt"))
