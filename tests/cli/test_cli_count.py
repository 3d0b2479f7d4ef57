"""`data count` on a folder of pairs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from lightning_idc.cli import main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lines = []
    for index, split in enumerate(["train", "train", "val", "test"]):
        for side in ("before", "after"):
            Image.new("RGB", (8, 8), (index, 0, 0)).save(tmp_path / f"{side}{index}.png")
        lines.append(
            {
                "id": str(index),
                "before": f"before{index}.png",
                "after": f"after{index}.png",
                "captions": ["a cube moved. it is red."] * (index + 1),
                "split": split,
            }
        )
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return tmp_path


def test_every_split_has_a_column(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "count", "folder", "--root", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["train", "val", "test", "all"]
    rows = {line[:30].strip(): line[30:].split() for line in lines[1:]}
    assert rows["pairs"] == ["2", "1", "1", "4"]
    assert rows["captions"] == ["3", "3", "4", "10"]
    assert rows["sentences per caption"] == ["2.0"] * 4
    assert rows["vocabulary"] == ["6"] * 4


def test_one_split_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "count", "folder", "--root", str(folder), "--split", "val"]) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == ["val"]


def test_a_benchmark_is_counted_without_its_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"uid": "a", "img0": "a.jpg", "img1": "b.jpg", "sents": ["make it brighter", ""]},
        {"uid": "b", "img0": "c.jpg", "img1": "d.jpg", "sents": [""]},
    ]
    (tmp_path / "test.json").write_text(json.dumps(rows), encoding="utf-8")
    (tmp_path / "train.json").write_text(json.dumps(rows[:1]), encoding="utf-8")
    assert main(["data", "count", "image_editing_request", "--root", str(tmp_path), "--split", "test"]) == 0
    lines = {line[:30].strip(): line[30:].split() for line in capsys.readouterr().out.splitlines()[1:]}
    # empty sentences, and pairs that have only those, are ignored as in training
    assert (lines["pairs"], lines["captions"], lines["words per caption"]) == (["1"], ["1"], ["3.0"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["foldr"], "no data module is called 'foldr'"),
        (["folder", "--split", "dev"], "invalid choice: 'dev'"),
        (["folder", "--rot", "x"], "rot"),
    ],
)
def test_errors_name_the_fault(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "count", *arguments]) in (1, 2)
    assert message in capsys.readouterr().err
