"""Imports that set environment variables once and for all, before a test could be blamed for them; runs in process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import toy_idc

import lightning_idc.cli.training
from lightning_idc.cli import main, stages


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Stages run in this process, and are noted with their configuration: a process of its own costs seconds."""
    import yaml

    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy.yaml").write_text(toy_idc.RECIPE, encoding="utf-8")
    noted: list[tuple[str, dict[str, Any]]] = []

    def run_here(verb: str, config: Path, result: Path, forked: bool) -> int:
        noted.append((config.parent.name, yaml.safe_load(config.read_text(encoding="utf-8"))))
        monkeypatch.setenv(lightning_idc.cli.training.RESULT, str(result))
        return main([verb, "--config", str(config)])

    monkeypatch.setattr(stages, "run_process", run_here)
    return noted
