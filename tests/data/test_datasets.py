"""A split of any data module is a torch dataset. Oracle: the module's samples, and the pixels of the drawing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from lightning_idc import data as data_package
from lightning_idc.data import (
    DeepPCB,
    DiffSpot,
    FolderPairs,
    HQEdit,
    PairDataModule,
    SpotTheDiff,
    SyntheticPairs,
)
from lightning_idc.data.benchmark import Benchmark
from lightning_idc.data.plotting import as_rgb, plot_pair
from lightning_idc.images.types import PairSample


@pytest.fixture
def spot(tmp_path: Path) -> Path:
    """Spot-the-Diff in its official layout, with three test pairs."""
    (tmp_path / "annotations").mkdir()
    (tmp_path / "resized_images").mkdir()
    records = [{"img_id": str(number), "sentences": [f"car {number} left"]} for number in range(3)]
    (tmp_path / "annotations/test.json").write_text(json.dumps(records))
    for number in range(3):
        for ending in ("", "_2"):
            pixels = np.full((30, 40, 3), 10 * number + len(ending), np.uint8)
            Image.fromarray(pixels).save(tmp_path / f"resized_images/{number}{ending}.png")
    return tmp_path


def test_a_benchmark_is_a_dataset_without_lightning(spot: Path) -> None:
    split = SpotTheDiff.split(spot, "test", official=False)
    assert isinstance(split, Dataset) and len(split) == 3
    sample = split[1]
    assert isinstance(sample, PairSample) and sample.id == "1" and sample.captions == ["car 1 left"]
    assert (sample.before == 10).all() and (sample.after == 12).all()
    assert split[-1].id == "2" and [pair.id for pair in split] == ["0", "1", "2"] == list(split.ids)
    with pytest.raises(IndexError):
        split[3]


def test_datasets_work_with_torch_loader_and_workers(spot: Path) -> None:
    module = SpotTheDiff(spot, official=False, image_size=(15, 20))
    for dataset in (module.dataset("test"), module.pairs_of("test")):
        loader = DataLoader(dataset, batch_size=2, collate_fn=list, num_workers=1)
        pairs = [pair for batch in loader for pair in batch]
        assert [pair.id for pair in pairs] == ["0", "1", "2"]
        assert {tuple(pair.before.shape) for pair in pairs} == {(3, 15, 20)}


def test_integer_index_means_epoch_0(tmp_path: Path) -> None:
    data = SyntheticPairs(train_pairs=2, val_pairs=1, test_pairs=1, render_size=16, image_size=20, cache_dir=tmp_path)
    dataset = data.dataset("train")
    assert dataset[0].before.shape == (3, 20, 20), "resized as in training"
    assert data.pairs_of("train")[0].before.shape == (3, 16, 16), "as rendered"
    batch = {
        name: image
        for name, image in zip(*[next(iter(data.loader("train")))[k] for k in ("ids", "images")], strict=True)
    }
    assert (batch[dataset[0].id][0] == dataset[0].before).all()


def test_plot_draws_boxes(spot: Path) -> None:
    dataset = SpotTheDiff.split(spot, "test", official=False)
    plain = dataset.plot(1)
    assert plain.size[0] > 2 * 320 and plain.getpixel((20, 40)) == (10, 10, 10)
    assert plain.getpixel((plain.size[0] - 20, 40)) == (12, 12, 12)
    sample = dataset[1]
    sample.boxes = torch.tensor([[[10.0, 10.0, 20.0, 20.0], [float("nan")] * 4]])
    drawn = np.asarray(plot_pair(sample))[:266].astype(int)
    changed = (drawn != np.asarray(plain)[:266]).any(-1)
    rows, columns = np.nonzero(changed)
    assert columns.max() < 8 + 320 and abs(columns.min() - (8 + 80)) <= 2 and abs(rows.min() - (8 + 18 + 80)) <= 2


@pytest.mark.parametrize("channels", [1, 2, 3, 5])
def test_plot_accepts_any_number_of_channels(channels: int) -> None:
    image = torch.arange(channels * 4, dtype=torch.uint8).view(channels, 2, 2)
    shown = as_rgb(image)
    assert shown.shape == (3, 2, 2) and (shown[0] == image[0]).all()


def test_input_spec_describes_the_data(spot: Path, tmp_path: Path) -> None:
    assert SyntheticPairs(render_size=(48, 64)).input_spec() == {
        "image_size": [48, 64],
        "interpolation": "bilinear",
        "value_range": None,
        "bands": None,
        "page": None,
        "fill_nan": None,
        "crop_bars": False,
        "channels": 3,
        "domain": "rendered scenes (clevr_change)",
    }
    native = SpotTheDiff(spot, official=False).input_spec()
    assert native["image_size"] == [30, 40] and native["domain"] == "Spot-the-Diff"
    spec = FolderPairs(tmp_path, image_size=7, bands=[3, 2], value_range="auto", interpolation="bicubic").input_spec()
    assert spec["image_size"] == [7, 7] and spec["channels"] == 2 and spec["bands"] == [3, 2]
    assert json.loads(json.dumps(spec)) == spec
    with pytest.raises(ValueError, match="image_size is 0; expected"):
        FolderPairs(tmp_path, image_size=0)
    with pytest.raises(ValueError, match="8-bit images; remove value_range, which has no effect"):
        DeepPCB(tmp_path, value_range="auto")


BENCHMARKS = [
    kind
    for kind in (getattr(data_package, name) for name in data_package.__all__)
    if isinstance(kind, type) and issubclass(kind, Benchmark)
] + [DeepPCB, DiffSpot, HQEdit]


@pytest.mark.parametrize("kind", BENCHMARKS, ids=lambda kind: kind.__name__)
def test_docstrings_are_data_cards(kind: type[PairDataModule]) -> None:
    text = kind.__doc__ or ""
    for heading in ("Features:", "Format:", "Splits:", "Licence:", "Cite:"):
        assert f"\n    {heading}" in text, f"{kind.__name__} says nothing under {heading}"
    assert "https://" in text.partition("Cite:")[2], f"{kind.__name__} has no link to what it cites"
