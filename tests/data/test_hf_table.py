"""HuggingFaceTable with two images in one column, and in one tar file. Oracle: the colours that were written."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from lightning_idc.data.benchmarks.hf_table import HuggingFaceTable
from lightning_idc.utils.errors import ConfigError, DataError

datasets = pytest.importorskip("datasets")
TRAIN = {"train": "train"}


def png(red: int, green: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (24, 16), (red, green, 0)).save(out, "PNG")
    return out.getvalue()


def colours(path: Path, before: str, after: str, text: str = "text") -> tuple[list[int], list[int], list[str]]:
    """Return the colours of both images of the second pair, and its captions."""
    sample = HuggingFaceTable(path, before, after, text, splits=TRAIN).pairs_of("train").load(1)
    return sample.before[:, 0, 0].tolist(), sample.after[:, 0, 0].tolist(), sample.captions


RIGHT = ([1, 0, 0], [1, 9, 0], ["pair 1"])


@pytest.fixture
def lists(tmp_path: Path) -> Path:
    """A table in the format of TRL, with both images in one column."""
    images = [[{"bytes": png(i, green), "path": None} for green in (0, 9)] for i in range(3)]
    features = {"images": datasets.List(datasets.Image()), "text": datasets.Value("string")}
    columns = {"images": images, "text": [f"pair {i}" for i in range(3)]}
    datasets.Dataset.from_dict(columns, datasets.Features(features)).save_to_disk(str(tmp_path / "lists"))
    return tmp_path / "lists"


def test_two_images_in_one_column(lists: Path) -> None:
    assert colours(lists, "images.0", "images.1") == RIGHT
    with pytest.raises(DataError, match=r"row 1, images.2 is None; expected an image"):
        colours(lists, "images.0", "images.2")
    for side in ("images", "images.0", "text"):
        with pytest.raises(ConfigError, match=rf"before and after are both '{side}'; expected two columns, or NAME\.0"):
            colours(lists, side, side)
    with pytest.raises(ConfigError, match=r"no column 'image\.0'"):
        colours(lists, "image.0", "image.1")


def test_fields_of_one_column(tmp_path: Path) -> None:
    """Images in the fields of a dictionary, and a caption in a nested field, like in the JSON of WebDataset."""
    pair = {"before": datasets.Image(), "after": datasets.Image()}
    kinds = datasets.Features({"pair": pair, "note": {"text": datasets.Value("string")}})
    rows = [
        {
            "pair": {side: {"bytes": png(i, green), "path": None} for side, green in (("before", 0), ("after", 9))},
            "note": {"text": f"pair {i}"},
        }
        for i in range(3)
    ]
    datasets.Dataset.from_list(rows, kinds).to_parquet(str(tmp_path / "train.parquet"))
    data = HuggingFaceTable(tmp_path / "train.parquet", "pair.before", "pair.after", "note.text", splits=TRAIN)
    sample = data.dataset("train")[1]
    found = (sample.captions, sample.before[:, 0, 0].tolist(), sample.after[:, 0, 0].tolist())
    assert found == (["pair 1"], [1, 0, 0], [1, 9, 0])
    assert data.pairs_of("train").fingerprint()
    with pytest.raises(ConfigError, match=r"no column 'pair\.later'"):
        HuggingFaceTable(tmp_path / "train.parquet", "pair.before", "pair.later", "note.text", splits=TRAIN).dataset(
            "train"
        )


def test_two_paths_in_one_column(tmp_path: Path) -> None:
    rows = []
    for i in range(3):
        for side, green in (("b", 0), ("a", 9)):
            (tmp_path / f"{side}{i}.png").write_bytes(png(i, green))
        rows.append({"images": [f"b{i}.png", f"a{i}.png"], "text": f"pair {i}"})
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert colours(tmp_path / "train.jsonl", "images.0", "images.1") == RIGHT
    data = HuggingFaceTable(tmp_path / "train.jsonl", "images.0", "images.1", "text", splits=TRAIN)
    fingerprint = data.pairs_of("train").fingerprint()
    (tmp_path / "a2.png").write_bytes(png(7, 7))
    data = HuggingFaceTable(tmp_path / "train.jsonl", "images.0", "images.1", "text", splits=TRAIN)
    assert data.pairs_of("train").fingerprint() != fingerprint


def test_one_tar_whose_columns_have_dots(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "train.tar", "w") as archive:

        def add(name: str, content: bytes) -> None:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))

        for i in range(3):
            add(f"{i:04}.before.png", png(i, 0))
            add(f"{i:04}.after.png", png(i, 9))
            add(f"{i:04}.txt", f"pair {i}".encode())
    assert colours(tmp_path / "train.tar", "before.png", "after.png", "txt") == RIGHT
    content = (tmp_path / "train.tar").read_bytes()
    (tmp_path / "cut").mkdir()
    for length in (4608, 5000):  # after the first pair, and within the second
        (tmp_path / "cut/train.tar").write_bytes(content[:length])
        for path in (tmp_path / "cut", tmp_path / "cut/train.tar"):
            with pytest.raises(DataError, match=r"train.tar' is cut off"):
                colours(path, "before.png", "after.png", "txt")
