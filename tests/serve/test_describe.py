"""describe: images are prepared as those of the training, and the user learns where they differ from them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import lightning_idc
from lightning_idc.cli import main
from lightning_idc.core.input_spec import InputSpec
from lightning_idc.errors import CheckpointError, ConfigError, DataError

Draw = Callable[..., Path]


def test_an_answer_as_json_as_text_and_as_a_picture(
    model: Path, draw: Draw, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = [str(draw("a.png")), str(draw("b.png", square=(16, 8)))]
    picture = tmp_path / "answer.png"
    assert main(["describe", *pair, "--model", str(model), "--json", "--save", str(picture)]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert found["size"] == [32, 32] and len(found["map"]) == 32 and found["notes"] == [] and said.err == ""
    # only what differs, and what is next to it, can be where the change lies
    marked = {(x, y) for y, row in enumerate(found["map"]) for x, value in enumerate(row) if value}
    assert marked and marked <= {(x, y) for x in range(15, 25) for y in range(7, 17)}
    assert all(15 <= x1 < x2 <= 25 and 7 <= y1 < y2 <= 17 for x1, y1, x2, y2 in found["boxes"])
    with Image.open(picture) as image:
        assert image.width > 3 * 300
    assert main(["describe", *pair, "--model", str(model)]) == 0
    assert found["caption"] in capsys.readouterr().out


def test_files_of_another_size_are_brought_to_that_of_the_training(
    model: Path, draw: Draw, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = [draw("a.png"), draw("b.png", square=(16, 8))]
    captioner = lightning_idc.load(model)
    expected = captioner.describe(*pair)
    for factor, note in ((4, ""), (8, "trained on 32x32: they are scaled 8 times down")):
        larger = []
        for path in pair:
            with Image.open(path) as image:
                side = 32 * factor
                target = tmp_path / f"{factor}{path.name}"
                image.resize((side, side), Image.Resampling.NEAREST).save(target)
                larger.append(str(target))
        assert main(["describe", *larger, "--model", str(model), "--no-where", "--json"]) == 0
        said = capsys.readouterr()
        found = json.loads(said.out)
        assert found["caption"] == expected.text and found["log_prob"] == pytest.approx(expected.log_prob, abs=0.01)
        assert note in said.err and bool(said.err) == bool(note)


@pytest.mark.parametrize(
    ("sizes", "note"),
    [
        (((32, 32), (40, 32)), "before is 32x32 and after is 40x32 pixels; both are stretched"),
        (((64, 32), (64, 32)), "stretched to another aspect"),
        (((12, 12), (12, 12)), "scaled 3 times up"),
    ],
)
def test_the_user_is_told_where_images_differ_from_each_other_or_from_the_training(
    model: Path, draw: Draw, capsys: pytest.CaptureFixture[str], sizes: tuple[tuple[int, int], ...], note: str
) -> None:
    pair = [str(draw(f"{side}.png", size=size)) for side, size in zip("ab", sizes, strict=True)]
    assert main(["describe", *pair, "--model", str(model)]) == 0
    assert f"note: {note}" in capsys.readouterr().err.replace("the images are 64x32 pixels and the captioner was "
        "trained on 32x32: they are ", "").replace("the images are 12x12 pixels and the captioner was trained on "
        "32x32: they are ", "")  # fmt: skip


def test_the_value_range_of_the_training_is_that_of_every_file(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = np.random.default_rng(0).integers(0, 4096, (2, 32, 32), np.uint16)
    pair = [tmp_path / "a.png", tmp_path / "b.png"]
    for path, image in zip(pair, values, strict=True):
        Image.fromarray(image).save(path)
    captioner = lightning_idc.load(model)
    with pytest.raises(DataError, match="value_range"):
        captioner.describe(*pair)
    assert main(["describe", *map(str, pair), "--model", str(model)]) == 1
    assert "value_range" in capsys.readouterr().err
    captioner.hparams["input_spec"] = {"size": [32, 32], "value_range": [0, 4095], "channels": 3}
    trained = captioner.save_pretrained(tmp_path / "trained")
    eight = [torch.from_numpy(np.rint(v / 4095 * 255).astype(np.uint8)).expand(3, -1, -1) for v in values]
    expected = captioner.describe(*eight).log_prob
    assert lightning_idc.load(trained).describe(*pair).log_prob == pytest.approx(expected, abs=1e-5)
    said = ["describe", *map(str, pair), "--model", str(model), "--json", "--image", "value_range=[0, 4095]"]
    assert main(said) == 0
    assert json.loads(capsys.readouterr().out)["log_prob"] == pytest.approx(expected, abs=1e-5)
    with pytest.raises(DataError, match="has 1 channels; this captioner reads 3"):
        captioner.describe(eight[0][:1], eight[1][:1])


def test_a_stored_size_is_used_though_no_image_size_was_named() -> None:
    spec = InputSpec.of({"image_size": None, "input_spec": {"size": [4, 6], "interpolation": "bicubic", "page": 0}})
    assert spec.size == (4, 6) and spec.interpolation == "bicubic" and spec.options.page == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sample = spec.read(torch.zeros(3, 8, 8, dtype=torch.uint8), torch.zeros(3, 8, 8, dtype=torch.uint8))
    assert sample.before.shape == (3, 4, 6) and sample.meta["sizes"] == [(8, 8), (8, 8)]
    assert InputSpec.of({}).size is None


def test_what_is_no_model_is_named_with_what_was_expected(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no model 'nothing-here': expected a \.ckpt file"):
        lightning_idc.load("nothing-here")
    with pytest.raises(CheckpointError, match=r"there is no checkpoint '.*gone.ckpt'"):
        lightning_idc.load(tmp_path / "gone.ckpt")
    with pytest.raises(ConfigError, match="there is no device 'cuda:7' here"):
        lightning_idc.load(model, device="cuda:7")
    with pytest.raises(ConfigError, match="expected NAME=VALUE; did you mean 'value_range'"):
        lightning_idc.load(model, image=["value_rang=auto"])
    with pytest.raises(ConfigError, match="is not asked in words"):
        lightning_idc.load(model, prompt="What is new?")
