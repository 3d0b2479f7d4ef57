"""Checks of a data set. Oracle: a folder of pairs with faults made by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lightning_idc.cli import main
from lightning_idc.cli.data import RECIPES
from lightning_idc.cli.recipes.shipped import shipped
from lightning_idc.data.benchmarks.folder import FolderPairs
from lightning_idc.data.benchmarks.hf_table import HuggingFaceTable
from lightning_idc.data.checking import check
from lightning_idc.data.mixture import Mixture
from lightning_idc.utils.errors import ConfigError

SIDES = ("before", "after")
ROOT = Path(__file__).resolve().parents[2]
ROUTE = {"efficientnet": "own_encoder", "clevr": "own_encoder"}
"""Recipes whose name differs from their row of the study."""


def write(root: Path, split: str, count: int, first: int = 0, size: tuple[int, int] = (6, 4), **more: Any) -> None:
    """Write the pairs of a split; the images of pair i are filled with i and 100 + i."""
    rows = []
    for number in range(first, first + count):
        row = {"id": f"{split}-{number}", "caption": "a cup", **more}
        for side, value in (("before", number), ("after", 100 + number)):
            row[side] = f"{split}-{number}-{side}.png"
            Image.fromarray(np.full((size[1], size[0], 3), value, np.uint8)).save(root / row[side])
        rows.append(row)
    (root / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for first, split in ((0, "train"), (20, "val"), (40, "test")):
        write(tmp_path, split, 3, first)
    return tmp_path


def test_valid_data_are_counted(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(FolderPairs(root), print) == []
    expected = [f"{split}: 3 pairs, 3 captions, images of 4x6" for split in ("train", "val", "test")]
    assert capsys.readouterr().out.splitlines() == expected


def test_images_shared_by_two_splits(root: Path) -> None:
    for side in ("before", "after"):
        (root / f"test-41-{side}.png").write_bytes((root / f"train-2-{side}.png").read_bytes())
    # one shared image alone is not a fault: boards made from one template share it
    (root / "test-40-before.png").write_bytes((root / "train-0-before.png").read_bytes())
    assert check(FolderPairs(root), print) == [
        "test: 1 of 3 pairs have the same images as one in train: test-41 = train-2"
    ]


def test_ids_shared_by_two_splits(root: Path) -> None:
    text = (root / "val.jsonl").read_text().replace('"id": "val-20"', '"id": "train-1"')
    (root / "val.jsonl").write_text(text)
    assert check(FolderPairs(root), print) == ["val: 1 of 3 ids are also in train: train-1"]


def test_several_sizes_need_image_size(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(root, "val", 2, 20, size=(8, 8))
    (problem,) = check(FolderPairs(root), print)
    assert problem == "no batch can hold images of several sizes (4x6 (6), 8x8 (2)); set image_size"
    assert check(FolderPairs(root, image_size=5), print) == []
    assert "images of 5x5" in capsys.readouterr().out


def test_all_problems_are_reported_together(root: Path) -> None:
    (root / "train-0-after.png").write_bytes(b"")
    (root / "train-1-before.png").write_text("<html>")
    (root / "test.jsonl").write_text(json.dumps({"before": "../x.png", "after": "a.png", "caption": "c"}))
    (root / "val.jsonl").unlink()
    problems = check(FolderPairs(root), print)
    assert problems == [
        f"{root / 'test.jsonl'}, line 1: the path '../x.png' leaves the data folder; only files below it are read"
    ]
    (root / "test.jsonl").unlink()
    *rest, empty, page = check(FolderPairs(root), print)
    assert empty.startswith("1 train pairs cannot be read: pair 'train-0'")
    assert page.startswith("1 train pairs cannot be read: pair 'train-1'")
    assert len(rest) == 2 and all("has no usable pairs" in problem for problem in rest)


def test_the_check_of_a_folder_names_recipes_with_measured_figures(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Oracle: the results of the study, and the shipped recipes."""
    assert main(["data", "check", "folder", "--root", str(root)]) == 0
    out = capsys.readouterr().out
    assert "3 training pairs; recipes" in out
    commands = re.findall(r"lightning-idc run (\S+) --data\.root (.+)", out)
    assert [name for name, _ in commands] == list(RECIPES) and set(RECIPES) <= set(shipped())
    assert all(path == str(root) for _, path in commands)
    study = json.loads((ROOT / "benchmarks/studies/results/own_pairs.json").read_text(encoding="utf-8"))
    measured = {
        (ROUTE.get(route, route), round(row["CIDEr-D"]), int(pairs), round(row["over"]["constant caption"]["first"]))
        for _, route, pairs, row in ((*run.split("/")[:3], row) for run, row in study["runs"].items())
        if "over" in row
    }
    quoted = {
        (name, *(int(figure.replace(",", "")) for figure in figures))
        for name, reason in RECIPES.items()
        for figures in re.findall(r"(\d+) with ([\d,]+) pairs, a constant caption (\d+)", reason)
    }
    assert quoted <= measured and {name for name, *_ in quoted} == {name for name, *_ in measured}


def test_pairs_with_one_fault_are_one_message(root: Path) -> None:
    for name in ("train-0-after", "train-2-before", "val-21-after"):
        (root / f"{name}.png").write_bytes(b"")
    (problem,) = check(FolderPairs(root), print)
    assert problem.startswith("2 train, 1 val pairs cannot be read: pair 'train-0'")
    assert problem.endswith("; the same with train-2, val-21")


def test_duplicate_pairs_within_a_split_are_reported(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for side in ("before", "after"):
        (root / f"train-2-{side}.png").write_bytes((root / f"train-0-{side}.png").read_bytes())
    assert check(FolderPairs(root), print) == []
    assert "train: 1 pairs repeat the images of another: train-2 = train-0" in capsys.readouterr().out


def test_images_can_be_resized_bicubically(root: Path) -> None:
    dots = np.zeros((8, 8, 3), np.uint8)
    dots[::3, ::3] = 255
    Image.fromarray(dots).save(root / "train-0-before.png")
    scaled = [
        FolderPairs(root, image_size=(5, 5), interpolation=how).pairs_of("train").load(0).before
        for how in ("bilinear", "bicubic")
    ]
    assert scaled[0].ne(scaled[1]).any()
    with pytest.raises(ConfigError, match="expected one of bilinear, bicubic"):
        FolderPairs(root, interpolation="nearest")  # type: ignore[arg-type]


@pytest.mark.slow
def test_row_numbers_are_not_shared_ids_and_splits_are_optional(root: Path) -> None:
    datasets = pytest.importorskip("datasets")
    splits = {"train": "train", "test": "test"}

    def table(shared: int | None = None, **options: Any) -> HuggingFaceTable:
        folder = root / f"tables-{shared}"
        folder.mkdir(exist_ok=True)
        for split, first in (("train", 0), ("test", 40)):
            names = [f"{split}-{first + n}" for n in range(3)]
            if split == "test" and shared is not None:
                names[0] = f"train-{shared}"
            columns: dict[str, list[Any]] = {"name": names, "text": ["a cup"] * 3}
            columns |= {side: [(root / f"{name}-{side}.png").read_bytes() for name in names] for side in SIDES}
            datasets.Dataset.from_dict(columns).to_parquet(str(folder / f"{split}-00000.parquet"))
        return HuggingFaceTable(folder, *SIDES, "text", **{"splits": splits, **options})

    assert table().pairs_of("train").ids == table().pairs_of("test").ids
    assert check(table(), print) == []
    with pytest.raises(ConfigError, match=r"splits has no name for 'val'; found 'train', 'test'"):
        table().pairs_of("val")
    assert check(table(shared=2), print) == [
        "test: 1 of 3 pairs have the same images as one in train: 000000 = 000002",
    ]
    assert check(table(shared=2, id=["name"]), print) == ["test: 1 of 3 ids are also in train: train-2"]
    mixed = Mixture({"all": table(splits={**splits, "val": "test"})})
    assert not any("ids are also" in problem for problem in check(mixed, print))
