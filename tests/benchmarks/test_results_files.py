"""Stored results of benchmarks and studies: commands and settings without folders of a machine."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import pytest

from benchmarks.studies.harness import save_results

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "benchmarks").rglob("results/**/*.json"))
ABSOLUTE_PATH = re.compile(r"(?<![\w.:/])/[\w.-]+/[\w./-]+")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_results_contain_no_absolute_path(path: Path) -> None:
    assert not ABSOLUTE_PATH.findall(path.read_text(encoding="utf-8"))


def test_settings_contain_the_names_of_files_without_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out.json"
    args = argparse.Namespace(language_model=str(tmp_path / "model.gguf"), pairs=8, seeds=[1], out=out, part=None)
    monkeypatch.setattr(
        "benchmarks.studies.harness.report",
        lambda results, out, *rest, **options: out.write_text(json.dumps(results["settings"])),
    )
    save_results(args, {})
    assert json.loads(out.read_text())["language_model"] == "model.gguf"
