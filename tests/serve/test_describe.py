"""`describe`: images are prepared as in training, and notes tell the user where they differ from training images."""

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
from lightning_idc.images.input_spec import InputSpec
from lightning_idc.images.options import ImageOptions
from lightning_idc.serve.answer import Answer
from lightning_idc.serve.answers import answer_pairs
from lightning_idc.utils.errors import CheckpointError, ConfigError, DataError

Draw = Callable[..., Path]


def answered(model: Path, before: Path, after: Path, crop_bars: bool = False) -> Answer:
    captioner = lightning_idc.load(model, device="cpu")
    options = ImageOptions(crop_bars=crop_bars)
    (answer,) = answer_pairs(captioner, [captioner.input_spec.read(before, after, options=options)])
    return answer


def test_an_answer_as_json_as_text_and_as_a_picture(
    model: Path, draw: Draw, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = [str(draw("a.png")), str(draw("b.png", square=(16, 8)))]
    picture = tmp_path / "answer.png"
    assert main(["describe", *pair, "--model", str(model), "--json", "--out", str(picture)]) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert result["size"] == [32, 32] and len(result["map"]) == 32 and result["notes"] == [] and captured.err == ""
    # only pixels that differ, and their neighbours, can be marked as the change
    marked = {(x, y) for y, row in enumerate(result["map"]) for x, value in enumerate(row) if value}
    assert marked and marked <= {(x, y) for x in range(15, 25) for y in range(7, 17)}
    assert all(15 <= x1 < x2 <= 25 and 7 <= y1 < y2 <= 17 for x1, y1, x2, y2 in result["boxes"])
    with Image.open(picture) as image:
        assert image.width > 3 * 300
    assert main(["describe", *pair, "--model", str(model), "--out", str(tmp_path / "answer.jpg")]) == 1
    assert (
        "expected a name that ends with .png or .geojson" in capsys.readouterr().err
        and not (tmp_path / "answer.jpg").exists()
    )
    assert main(["describe", *pair, "--model", str(model)]) == 0
    assert result["caption"] in capsys.readouterr().out


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
        assert main(["describe", *larger, "--model", str(model), "--no_where", "--json"]) == 0
        captured = capsys.readouterr()
        result = json.loads(captured.out)
        assert result["caption"] == expected.text and result["log_prob"] == pytest.approx(expected.log_prob, abs=0.01)
        assert note in captured.err and bool(captured.err) == bool(note)


@pytest.mark.parametrize(
    ("sizes", "note"),
    [
        (((32, 32), (40, 32)), "before is 32x32 and after is 40x32 pixels; both are stretched"),
        (((32, 32), (64, 64)), "before is 32x32 and after is 64x64 pixels; both are scaled to 32x32"),
        (((64, 32), (64, 32)), "stretched to another aspect"),
        (((12, 12), (12, 12)), "scaled 3 times up"),
    ],
)
def test_images_that_differ_from_each_other_or_from_training_have_notes(
    model: Path, draw: Draw, capsys: pytest.CaptureFixture[str], sizes: tuple[tuple[int, int], ...], note: str
) -> None:
    pair = [str(draw(f"{side}.png", size=size)) for side, size in zip("ab", sizes, strict=True)]
    assert main(["describe", *pair, "--model", str(model)]) == 0
    assert f"note: {note}" in capsys.readouterr().err.replace("the images are 64x32 pixels and the captioner was "
        "trained on 32x32: they are ", "").replace("the images are 12x12 pixels and the captioner was trained on "
        "32x32: they are ", "")  # fmt: skip


@pytest.mark.parametrize(
    ("size", "place", "colour", "ending"),
    [
        ((64, 32), (16, 0), "black", "png"),
        ((57, 32), (25, 0), "white", "png"),
        ((32, 50), (0, 0), "gray", "png"),
        ((64, 32), (16, 0), "black", "webp"),
    ],
)
def test_borders_that_bring_a_picture_to_another_aspect_change_nothing(
    model: Path, draw: Draw, tmp_path: Path, size: tuple[int, int], place: tuple[int, int], colour: str, ending: str
) -> None:
    pair = [draw("a.png"), draw("b.png", square=(16, 8))]
    expected = answered(model, *pair)
    padded = []
    for path in pair:
        canvas = Image.new("RGB", size, colour)
        with Image.open(path) as image:
            canvas.paste(image, place)
        padded.append(tmp_path / f"padded_{path.stem}.{ending}")
        canvas.save(padded[-1], **({"lossless": True} if ending == "webp" else {}))
    with pytest.warns(UserWarning, match=f"uniform borders are cropped: {size[0]}x{size[1]} to 32x32 pixels"):
        result = answered(model, *padded, crop_bars=True)
    assert (result.caption, result.log_prob, result.change_score) == (
        expected.caption, expected.log_prob, expected.change_score,
    )  # fmt: skip
    left, top = place
    assert result.size == size and expected.boxes
    assert result.boxes == [[x1 + left, y1 + top, x2 + left, y2 + top] for x1, y1, x2, y2 in expected.boxes]
    assert result.map is not None and len(result.map) <= 32 and len(result.map[0]) <= 32
    marked = [
        (x / len(result.map[0]), y / len(result.map))
        for y, row in enumerate(result.map)
        for x, v in enumerate(row)
        if v
    ]
    assert marked and all(left / size[0] <= x <= (left + 32) / size[0] for x, _ in marked)
    assert all(top / size[1] <= y <= (top + 32) / size[1] for _, y in marked)


def test_only_what_the_aspect_asks_for_is_cut_off_and_never_a_change() -> None:
    spec = InputSpec(size=(32, 32), options=ImageOptions(crop_bars=True))
    before = torch.zeros(3, 32, 64, dtype=torch.uint8)
    with pytest.warns(UserWarning, match="another aspect"):
        assert "window" not in InputSpec(size=(32, 32)).read(before, before).meta, "nothing is cut off unasked"
    after = before.clone()
    after[:, 4:8, 2:6] = 200  # within the presumed border
    with pytest.warns(UserWarning, match="64x32 to 32x32 pixels"):
        window = spec.read(before, after).meta["window"]
    assert window == (2 / 64, 0.0, 34 / 64, 1.0), "as much on each side as it allows"
    after[:, 4:8, 40:44] = 200
    with (
        pytest.warns(UserWarning, match="uniform borders are cropped: 64x32 to 42x32 pixels"),
        pytest.warns(match="another aspect"),
    ):
        assert spec.read(before, after).meta["window"] == (2 / 64, 0.0, 44 / 64, 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        square = torch.zeros(3, 64, 64, dtype=torch.uint8)
        assert "window" not in spec.read(square, square).meta, "of the trained aspect nothing is cut"
    before = torch.randint(0, 255, (3, 32, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    before[:, :, :10], before[:, :, 32:] = 128, 255  # a uniform background on the left, a border on the right
    with pytest.warns(UserWarning, match="64x32 to 32x32 pixels"):
        assert spec.read(before, before).meta["window"] == (0.0, 0.0, 0.5, 1.0)


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
    spec = InputSpec.from_hparams(
        {"image_size": None, "input_spec": {"size": [4, 6], "interpolation": "bicubic", "page": 0}}
    )
    assert spec.size == (4, 6) and spec.interpolation == "bicubic" and spec.options.page == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sample = spec.read(torch.zeros(3, 8, 8, dtype=torch.uint8), torch.zeros(3, 8, 8, dtype=torch.uint8))
    assert sample.before.shape == (3, 4, 6) and sample.meta["sizes"] == [(8, 8), (8, 8)]
    assert InputSpec.from_hparams({}).size is None


def test_what_is_no_model_is_named_with_what_was_expected(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no model 'nothing-here': expected a \.ckpt file"):
        lightning_idc.load("nothing-here")
    with pytest.raises(CheckpointError, match=r"there is no checkpoint '.*gone.ckpt'"):
        lightning_idc.load(tmp_path / "gone.ckpt")
    with pytest.raises(ConfigError, match="the device 'cuda:7' is not available"):
        lightning_idc.load(model, device="cuda:7")
    with pytest.raises(ConfigError, match="expected NAME=VALUE; did you mean 'value_range'"):
        lightning_idc.load(model, image=["value_rang=auto"])
    with pytest.raises(ConfigError, match="takes no prompt"):
        lightning_idc.load(model, prompt="What is new?")


def test_the_picture_is_not_written_over_an_image_of_the_pair(
    model: Path, draw: Draw, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = draw("before.png", seed=0), draw("after.png", seed=1)
    kept = before.read_bytes(), after.read_bytes()
    for save in (before, after):
        assert main(["describe", str(before), str(after), "--model", str(model), "--out", str(save)]) == 1
        assert f"{save.name}' is an input and would be overwritten; choose another file" in capsys.readouterr().err
    assert (before.read_bytes(), after.read_bytes()) == kept


@pytest.mark.parametrize(
    ("save", "said"),
    [("absent/a.png", "'absent' is not a folder"), ("folder.png", "is a folder; expected the path of a file")],
)
def test_a_picture_that_cannot_be_written_is_named_before_the_work(
    save: str, said: str, draw: Draw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """A vision-language model may take minutes for an answer, which would be lost."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.png").mkdir()
    arguments = [
        "describe",
        str(draw("before.png")),
        str(draw("after.png", seed=1)),
        "--model",
        "absent",
        "--out",
        save,
    ]
    assert main(arguments) == 1
    assert f"--out {save!r}" in (printed := capsys.readouterr().err) and said in printed
