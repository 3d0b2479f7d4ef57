"""The example of every public data set runs on a folder in the official layout."""

from __future__ import annotations

import doctest
import importlib
import inspect
import json
from pathlib import Path

import pytest
import torch
from test_benchmarks import ALL, clevr_dc, spot_the_diff
from test_deeppcb import mini
from test_diffspot import diffspot
from test_newer_benchmarks import TURNS, changechat, hq_edit, image, lines, rscc, subtlebench
from test_satellite_and_medical import dubai_cc, levir_mci, medical_diff_vqa, second_cc

from lightning_idc import data as data_package
from lightning_idc.data import DeepPCB, PairDataModule
from lightning_idc.data.benchmark import Benchmark

BASES = {"PairDataModule": "the base class of all data sets"}
KINDS = {
    name: kind
    for name in data_package.__all__
    if isinstance(kind := getattr(data_package, name), type) and issubclass(kind, PairDataModule) and name not in BASES
}


def table(file: Path, **columns: str) -> None:
    for side in ("a", "b"):
        image(file.parent / f"{side}.png", 7)
    lines(file, [columns])


def web_release(folder: Path) -> None:
    for side in ("a", "b"):
        image(folder / f"{side}.png", 7)
    change = {"operator": "color", "tier": "easy", "boxes": [[1, 1, 3, 2], [1, 1, 3, 2]]}
    sentence = "the color of a link is another one"
    row = {"id": "1", "before": "a.png", "after": "b.png", "captions": [sentence], "split": "test", "change": change}
    lines(folder / "pairs.jsonl", [row])


OTHERS = {
    "DeepPCB": lambda data: mini(data / "deeppcb"),
    "DeepPCBCells": lambda data: mini(data / "deeppcb"),
    "DiffSpot": lambda data: diffspot(data / "diffspot"),
    "HQEdit": lambda data: hq_edit(data / "hq_edit"),
    "VLMSubtleBench": lambda data: subtlebench(data / "vlm_subtlebench"),
    "ChangeChat": lambda data: changechat(data / "changechat", TURNS),
    "RSCC": lambda data: rscc(data / "rscc"),
    "LEVIRMCI": lambda data: levir_mci(data / "levir_mci"),
    "SECONDCC": lambda data: second_cc(data / "second_cc"),
    "DubaiCC": lambda data: dubai_cc(data / "dubai_cc"),
    "MedicalDiffVQA": lambda data: medical_diff_vqa(data / "medical_diff_vqa"),
    "Mixture": lambda data: (clevr_dc(data / "clevr_dc"), spot_the_diff(data / "spot_the_diff")),
    "HuggingFaceTable": lambda data: table(
        data.parent / "pairs/train.jsonl", before="a.png", after="b.png", caption="it moved"
    ),
    "FolderPairs": lambda data: [image(data.parent / f"pairs/{side}/1.png", 7) for side in ("before", "after")],
    "WebPairs": lambda data: web_release(data.parent / "release"),
    "PreferencePairs": lambda data: table(
        data.parent / "preferences/preferences.jsonl",
        before="a.png",
        after="b.png",
        chosen="it moved",
        rejected="it is gone",
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_the_example_of_a_data_set_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIGHTNING_IDC_CACHE", str(tmp_path / "cache"))
    # the trees hold a few pairs, not the official number
    monkeypatch.setattr(Benchmark.__init__, "__defaults__", (None, False, "raise", False))
    parameters = inspect.signature(DeepPCB.__init__).parameters.values()
    defaults = {one.name: one.default for one in parameters if one.default is not one.empty}
    assert defaults["official"] is True
    monkeypatch.setattr(DeepPCB.__init__, "__defaults__", tuple({**defaults, "official": False}.values()))
    kind = KINDS[name]
    (tmp_path / "data").mkdir()
    for make in ALL:
        if make.__name__ == getattr(kind, "folder", None):
            make(tmp_path / "data" / make.__name__)
    OTHERS.get(name, lambda data: None)(tmp_path / "data")
    module = importlib.import_module(kind.__module__)
    own = {**vars(module), "torch": torch, "json": json}
    (example,) = doctest.DocTestFinder(recurse=False).find(kind, name, module, own)
    assert example.examples, f"{name} has no example"
    output: list[str] = []
    outcome = doctest.DocTestRunner(verbose=False).run(example, out=output.append)
    assert not outcome.failed, "".join(output)
