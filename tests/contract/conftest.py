"""A folder for untrusted files, and a tiny CLIP."""

from __future__ import annotations

import builtins
from pathlib import Path

import pytest
from helpers.sandbox import Sandbox


@pytest.fixture
def tiny_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register "tiny", a CLIP configuration that builds instantly."""
    from open_clip import factory

    tower = {"layers": 1, "width": 64, "patch_size": 8, "image_size": 16, "head_width": 64}
    texts = {"layers": 1, "width": 64, "heads": 1, "context_length": 77, "vocab_size": 49408}
    monkeypatch.setitem(factory._MODEL_CONFIGS, "tiny", {"embed_dim": 8, "vision_cfg": tower, "text_cfg": texts})


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sandbox:
    import datasets

    box = Sandbox.make(tmp_path)
    monkeypatch.chdir(box.folder)
    monkeypatch.setenv("LIGHTNING_IDC_CACHE", str(box.folder / "cache"))
    # as with `python -m`, so that an import of a file in the folder would succeed
    monkeypatch.syspath_prepend(str(box.folder))
    for name in ("HF_DATASETS_CACHE", "HF_MODULES_CACHE", "DOWNLOADED_DATASETS_PATH", "EXTRACTED_DATASETS_PATH"):
        monkeypatch.setattr(datasets.config, name, str(box.folder / "cache" / name), raising=False)

    def ask(prompt: str = "") -> str:
        raise AssertionError(f"a terminal was asked: {prompt}")

    monkeypatch.setattr(builtins, "input", ask)
    return box
