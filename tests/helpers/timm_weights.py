"""Weights of tiny timm models, as files and in a hand-made Hugging Face cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import save_file
from torch import Tensor


def timm_state(name: str) -> tuple[dict[str, Tensor], Any]:
    """State dict of a timm model with random weights, and the model."""
    import timm

    torch.manual_seed(1)
    model: Any = timm.create_model(name, num_classes=5)
    return {key: value.clone().contiguous() for key, value in model.state_dict().items()}, model


def hub_repository(
    folder: Path, monkeypatch: pytest.MonkeyPatch, state: dict[str, Tensor], architecture: str = "test_resnet"
) -> str:
    """Hub id of a timm repository in a local cache; the hub itself is offline."""
    commit, name = "0" * 40, "someone/tiny"
    repository = folder / "cache" / ("models--" + name.replace("/", "--"))
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit, encoding="utf-8")
    save_file(state, snapshot / "model.safetensors")
    (snapshot / "config.json").write_text(json.dumps({"architecture": architecture}), encoding="utf-8")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return name
