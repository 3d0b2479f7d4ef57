"""Notebooks of the documentation run from beginning to end, each with its own kernel and empty folder."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers.processes import forking_python

pytestmark = pytest.mark.slow
nbformat = pytest.importorskip("nbformat", reason="needs the extra dev")
nbclient = pytest.importorskip("nbclient", reason="needs the extra dev")
ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "docs" / "notebooks"


def printed(notebook: Any) -> list[str]:
    """Return the words of each text output without their numbers, and an entry for each image."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    texts = [re.sub(r"[-+]?\d+(\.\d+)?", "0", o["text"]).split() for o in outputs if o.get("name") == "stdout"]
    return [*map(" ".join, texts), *("picture" for output in outputs if "image/png" in output.get("data", {}))]


def ran(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[str]]:
    """Run a notebook and return the texts and images that its cells output; fail if a cell fails."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("LIGHTNING_IDC_CACHE", str(folder / "cache"))
    monkeypatch.setenv("IPYTHONDIR", str(folder / "ipython"))
    monkeypatch.setenv("JUPYTER_PATH", str(folder / "jupyter"))
    kernel = {"argv": [forking_python(), "-m", "ipykernel_launcher", "-f", "{connection_file}"], "language": "python"}
    (folder / "jupyter" / "kernels" / "forked").mkdir(parents=True)
    (folder / "jupyter" / "kernels" / "forked" / "kernel.json").write_text(
        json.dumps({**kernel, "display_name": "forked"}), encoding="utf-8"
    )
    shutil.copy(NOTEBOOKS / name, folder)
    notebook = nbformat.read(folder / name, as_version=4)
    nbformat.validate(notebook)
    stored = printed(notebook)
    where = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(notebook, timeout=300, resources=where, kernel_name="forked").execute()
    assert printed(notebook) == stored, "the outputs that readers see are of an earlier version: run it again"
    outputs: list[Any] = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not [o["text"] for o in outputs if o.get("name") == "stderr" and "Traceback" in o["text"]]
    texts = [o["text"] for o in outputs if o.get("name") == "stdout"]
    return texts, [o["data"]["image/png"] for o in outputs if "image/png" in o.get("data", {})]


def test_all_notebooks_are_tested() -> None:
    assert {path.name for path in NOTEBOOKS.iterdir()} == {"two_photos.ipynb", "own_folder.ipynb"}
    assert os.path.getsize(NOTEBOOKS / "own_folder.ipynb") < 20_000


def test_two_pictures_are_described_with_map_and_boxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts, pictures = ran("two_photos.ipynb", tmp_path, monkeypatch)
    said = "".join(texts)
    scores = [float(score) for score in re.findall(r"change score (\d\.\d+)", said)]
    assert len(scores) == 2 and scores[0] > 0.5 > scores[1], said
    assert re.search(r"pixels\): \[\[\d+, \d+, \d+, \d+\]", said) and len(pictures) == 3


def test_a_folder_of_ones_own_is_learned_and_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts, _ = ran("own_folder.ipynb", tmp_path, monkeypatch)
    table = {name: float(score) for name, score in re.findall(r"^(\w+) +CIDEr-D +(\d+\.\d)", "".join(texts), re.M)}
    assert set(table) == {"PairTransformer", "Mine", "constant"}
    assert min(table["PairTransformer"], table["Mine"]) > table["constant"], table
