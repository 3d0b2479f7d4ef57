"""Representations show arguments, counts and shapes. Oracle: the text that a user wants to see, written by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import lightning_idc
from lightning_idc.data import FolderPairs
from lightning_idc.data.source import View
from lightning_idc.data.transforms.pairs import Compose, Flip, Resize
from lightning_idc.images.types import PairBatch, PairSample

IMAGE = torch.zeros(3, 8, 9, dtype=torch.uint8)


def test_a_sample_shows_shapes_and_the_number_of_captions() -> None:
    sample = PairSample("a", IMAGE, IMAGE, ["a car left"] * 5, boxes=torch.zeros(1, 2, 4))
    assert repr(sample) == (
        "PairSample(id='a', before=uint8 (3, 8, 9), after=uint8 (3, 8, 9), captions=['a car left', ... 5 in all], "
        "boxes=float32 (1, 2, 4))"
    )


def test_a_batch_shows_shapes() -> None:
    tokens = torch.zeros(2, 1, 4, dtype=torch.int64)
    batch = PairBatch(
        images=torch.stack([torch.stack([IMAGE, IMAGE])] * 2),
        tokens=tokens,
        caption_mask=tokens.bool(),
        ids=["a", "b"],
        references=[["a car left"], ["no change"]],
        change_types=[None, None],
    )
    assert repr(batch) == (
        "PairBatch(images=uint8 (2, 2, 3, 8, 9), tokens=int64 (2, 1, 4), caption_mask=bool (2, 1, 4), ids=['a', 'b'], "
        "references=[['a car left'], ['no change']], change_types=[None, None])"
    )


def test_transforms_show_their_arguments() -> None:
    transform = Compose([Resize((64, 96)), Flip()])
    assert repr(transform) == "Compose(transforms=[Resize(size=(64, 96)), Flip()])"


def test_a_data_module_shows_arguments_and_the_pairs_of_splits_that_were_read(tmp_path: Path) -> None:
    from PIL import Image

    for name in ("before", "after"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (9, 8)).save(tmp_path / name / "a.png")
    data = FolderPairs(tmp_path, batch_size=4, image_size=8)
    assert repr(data) == str(data) == f"FolderPairs(root={tmp_path!r}, batch_size=4, image_size=(8, 8))"
    source = data.pairs_of("predict")
    assert repr(data).endswith("pairs={'predict': 1})")
    assert repr(source) == f"{type(source).__name__}(pairs=1)"
    assert repr(View(source)) == f"View(source={source!r}, pairs=1)"
    assert repr(data.dataset("predict")).startswith(f"PairDataset(source={source!r}, transforms=[Resize(size=(8, 8))]")


@pytest.mark.parametrize("name", ["FolderPairs", "CIDErD"])
def test_an_import_from_the_wrong_package_says_where_the_name_is(name: str) -> None:
    package = {"FolderPairs": "lightning_idc.data", "CIDErD": "lightning_idc.metrics"}[name]
    with pytest.raises(ImportError, match=rf"from {package} import {name}"):
        exec(f"from lightning_idc.nn import {name}")


def test_a_public_name_of_another_package_is_no_attribute() -> None:
    """jsonargparse looks up names in packages that may not have them."""
    assert not hasattr(lightning_idc, "FolderPairs") and getattr(lightning_idc, "FolderPairs", None) is None
    with pytest.raises(AttributeError, match=r"no attribute 'FolderPairs'; lightning_idc.data has it"):
        _ = lightning_idc.FolderPairs  # type: ignore[attr-defined]


def test_an_unknown_attribute_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'NoSuchName'"):
        _ = lightning_idc.NoSuchName  # type: ignore[attr-defined]
    from lightning_idc import report  # a module, not a public name

    assert report.__name__ == "lightning_idc.report"
