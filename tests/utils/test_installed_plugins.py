"""Packages with an entry point of `lightning_idc.plugins`: found without ``--import``, listed, and never fatal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import lightning_idc
from lightning_idc.checkpoints.shipped import SHIPPED
from lightning_idc.cli import main
from lightning_idc.utils import names
from lightning_idc.utils.plugins import plugins

MODULE = '''"""Birds before and after."""

from pathlib import Path

from lightning_idc.data import FolderPairs

DATA = {"birds": "bird_pairs.BirdPairs", "folder": "bird_pairs.BirdPairs"}
RECIPES = Path(__file__).parent / "bird_recipes"
MODELS = Path(__file__).parent / "bird_models"


class BirdPairs(FolderPairs):
    """Pairs of birds."""
'''
RECIPE = "recipe: {title: A captioner of birds, minutes: 3}\nstages: {}\n"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed package, in the layout of pip."""
    (tmp_path / "bird_pairs.py").write_text(MODULE)
    info = tmp_path / "bird_idc-2.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bird-idc\nVersion: 2.1\n")
    (info / "entry_points.txt").write_text("[lightning_idc.plugins]\nbirds = bird_pairs\n")
    (tmp_path / "bird_recipes").mkdir()
    (tmp_path / "bird_recipes" / "bird_captioner.yaml").write_text(RECIPE)
    shutil.copytree(SHIPPED / "pcb", tmp_path / "bird_models" / "sparrows")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(names, "MODULES", [*names.MODULES])
    monkeypatch.setattr("lightning_idc.utils.plugins.MODULES", names.MODULES)
    plugins.cache_clear()
    names.class_of.cache_clear()
    yield tmp_path
    sys.modules.pop("bird_pairs", None)
    plugins.cache_clear()
    names.class_of.cache_clear()


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["list", *arguments]) == 0
    return capsys.readouterr().out


def test_a_plugin_is_listed_with_its_data_recipes_and_models(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert listed(capsys, "plugins").split() == ["birds", "bird-idc", "2.1", "bird_pairs"]
    assert "Birds before and after." in listed(capsys, "plugins", "birds")
    assert "bird_pairs.BirdPairs\n    Pairs of birds." in listed(capsys, "data")
    assert "A captioner of birds (3 min)" in listed(capsys, "recipes")
    assert "sparrows" in listed(capsys, "models") and "sparrows" in lightning_idc.list_models()
    assert "lightning_idc.data.benchmarks.folder.FolderPairs" in listed(capsys, "data", "folder")


@pytest.mark.slow
def test_its_classes_and_captioners_have_names(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", "birds", "--root", "nowhere"]) == 1
    assert "nowhere" in capsys.readouterr().out and names.full_name("BirdPairs") == "bird_pairs.BirdPairs"
    assert lightning_idc.load("sparrows", device="cpu").input_spec == lightning_idc.load("pcb", device="cpu").input_spec


def test_a_broken_plugin_warns_and_stops_nothing(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (package / "bird_pairs.py").write_text("import no_such_package\n")
    with pytest.warns(UserWarning, match=r"the plug-in birds of bird-idc 2.1 cannot be imported \(ModuleNotFoundError"):
        assert main(["list", "data"]) == 0
    assert "spot_the_diff" in capsys.readouterr().out


def test_an_empty_list_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("lightning_idc.utils.plugins.plugins", list)
    assert main(["list", "plugins"]) == 0
    output = capsys.readouterr()
    assert output.out == "" and output.err == "no plugins are installed\n"
