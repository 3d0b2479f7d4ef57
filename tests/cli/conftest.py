"""Fixtures that run the toy recipe in the process of the test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import toy_idc
import yaml
from helpers.stages_here import stages_here

from lightning_idc.cli import main


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a finished run of the toy recipe; tests copy it."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        stages_here(patch)
        Path("toy.yaml").write_text(toy_idc.RECIPE, encoding="utf-8")
        assert main(["run", "toy.yaml", "--out", "out"]) == 0
    return folder / "out"


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Set up the toy recipe; the list receives name and configuration of each stage that runs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy.yaml").write_text(toy_idc.RECIPE, encoding="utf-8")
    noted: list[tuple[str, dict[str, Any]]] = []
    stages_here(
        monkeypatch,
        lambda plan: noted.append((Path(plan.record).parent.name, yaml.safe_load(Path(plan.file).read_text()))),
    )
    return noted
