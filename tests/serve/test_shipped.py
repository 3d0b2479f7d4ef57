"""The captioners included in the library: they exist, are small, load by name and describe their own sample."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from PIL import Image

import lightning_idc
from lightning_idc.checkpoints.resolve import resolve
from lightning_idc.checkpoints.shipped import DEFAULT, shipped_models
from lightning_idc.cli import main
from lightning_idc.data.benchmarks.defects import parse_defects
from lightning_idc.metrics.page_claims import claimed_operator
from lightning_idc.serve.answers import answer_pairs
from lightning_idc.utils.boxes import box_iou
from lightning_idc.utils.errors import ConfigError

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.parametrize("name", shipped_models())
def test_a_shipped_captioner_is_small_and_has_a_card_and_a_sample(name: str) -> None:
    folder = shipped_models()[name]
    assert (folder / "model.safetensors").stat().st_size < 5e6
    assert "## Limits" in (folder / "README.md").read_text() and "## Scores" in (folder / "README.md").read_text()
    captioner = lightning_idc.load(name, device="cpu")
    keeps_size = name == "web"  # screenshots are read in their original size
    assert keeps_size == (captioner.input_spec.size is None)
    assert captioner.input_spec.domain and captioner.input_spec.channels == 3
    assert captioner.describe(*lightning_idc.sample_pair(name)).text


def test_the_python_block_of_the_readme_runs_as_typed(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = [b for b in re.findall(r"```python\n(.*?)```", README.read_text(), re.S) if "lightning_idc.load" in b]
    exec(block, {})
    assert capsys.readouterr().out.strip() == block.rsplit("  # ", 1)[1].strip(), "the comment shows what is printed"


def test_without_a_model_rules_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The former default, a captioner of rendered scenes, also answered about photographs, which it does not know."""
    image = Image.new("RGB", (120, 80), (200, 200, 200))
    image.save(tmp_path / "before.png")
    image.paste((220, 20, 20), (80, 8, 104, 28))
    image.save(tmp_path / "after.png")
    before, after = str(tmp_path / "before.png"), str(tmp_path / "after.png")
    assert main(["describe", before, after, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["caption"] == "A red object was added in the upper right." and answer["changed"]
    assert answer["boxes"] == [[80, 8, 104, 28]] and answer["regions"][0]["kind"] == "added"
    assert main(["describe", before, after, "--out", str(tmp_path / "answer.png")]) == 0
    assert "A red object was added" in capsys.readouterr().out and (tmp_path / "answer.png").is_file()
    assert main(["describe", before, before, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["caption"] == "Nothing changed."
    assert main(["describe", before, after, "--device", "cpu"]) == 1
    assert "--device is an option of a captioner; expected --model with it" in capsys.readouterr().err
    for side in (before, after):
        folder = tmp_path / Path(side).stem
        folder.mkdir()
        Path(side).rename(folder / "page.png")
    folders = [str(tmp_path / "before"), str(tmp_path / "after")]
    out = ["--out", str(tmp_path / "c.jsonl")]
    assert main(["compare", *folders, "--fail_on", "changed", *out]) == 1
    assert "changed   page: A red object was added in the upper right." in capsys.readouterr().out


@pytest.mark.slow
def test_the_board_captioner_counts_and_locates_the_defects_of_its_sample() -> None:
    captioner = lightning_idc.load("pcb", device="cpu")
    before, after = lightning_idc.sample_pair("pcb")
    result, same = (captioner.input_spec.read(before, other) for other in (after, before))
    (answer,) = answer_pairs(captioner, [result])
    # the official annotation of this pair, DeepPCB's 13000214: x1 y1 x2 y2
    boxes = [
        (137, 146, 182, 177),
        (126, 414, 155, 494),
        (150, 107, 176, 134),
        (243, 277, 280, 319),
        (70, 356, 106, 397),
    ]
    assert parse_defects(answer.caption) == dict.fromkeys(("open", "short", "mousebite", "copper", "pinhole"), 1)
    assert answer.changed and len(answer.boxes) == len(boxes)
    for x1, y1, x2, y2 in boxes:
        x, y = (x1 + x2) / 2, (y1 + y2) / 2
        assert any(left <= x <= right and top <= y <= bottom for left, top, right, bottom in answer.boxes)
    (nothing,) = answer_pairs(captioner, [same])
    assert nothing.changed is False and nothing.boxes == [] and parse_defects(nothing.caption) == {}


def test_the_page_captioner_names_and_locates_the_change_of_its_sample() -> None:
    captioner = lightning_idc.load("web", device="cpu")
    before, after = lightning_idc.sample_pair("web")
    (answer,) = answer_pairs(captioner, [captioner.input_spec.read(before, after)])
    # the generator changed the font size of the link "Watch" from 17 to 21.2 pixels
    assert claimed_operator(answer.caption) == "font_size" and "larger" in answer.caption
    (box,) = answer.boxes
    assert answer.changed and box_iou(box, (55, 606, 136, 648)) > 0.5
    (nothing,) = answer_pairs(captioner, [captioner.input_spec.read(before, before)])
    assert nothing.changed is False and nothing.boxes == [] and nothing.caption == "nothing changed"


@pytest.mark.slow
@pytest.mark.parametrize(("degrees", "right", "down"), [(0.0, -6, 4), (0.8, 0, 0), (-0.5, 7, -3)])
def test_a_template_that_lies_a_little_apart_changes_nothing(degrees: float, right: int, down: int) -> None:
    captioner = lightning_idc.load("pcb", device="cpu")
    before, after = (Image.open(path).convert("L") for path in lightning_idc.sample_pair("pcb"))
    moved = before.rotate(degrees, Image.Resampling.BICUBIC, translate=(right, down), fillcolor=255)
    (answer,) = answer_pairs(captioner, [captioner.input_spec.read(moved, after)])
    assert parse_defects(answer.caption) == dict.fromkeys(("open", "short", "mousebite", "copper", "pinhole"), 1)
    assert len(answer.boxes) == 5


def test_models_are_listed_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "models"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert listed[0].startswith(DEFAULT) and len(listed) == len(shipped_models())
    assert main(["list", "models", DEFAULT]) == 0
    assert capsys.readouterr().out.startswith(f"# {DEFAULT}")
    assert main(["list", "models", "clevrr"]) == 1
    assert "did you mean 'clevr'?" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="there is no sample 'x'"):
        lightning_idc.sample_pair("x")


@pytest.mark.slow
def test_a_folder_of_a_captioner_comes_before_a_shipped_captioner_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``open_model`` and ``resolve`` use the same order."""
    name = sorted(shipped_models())[0]
    other = next(path for other, path in shipped_models().items() if other != name)
    shutil.copytree(other, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    expected = lightning_idc.load(other, device="cpu").input_spec
    assert lightning_idc.load(name, device="cpu").input_spec == expected
    assert resolve(name) == Path(name)
    assert lightning_idc.load(shipped_models()[name], device="cpu").input_spec != expected


@pytest.mark.slow
@pytest.mark.parametrize("name", shipped_models())
def test_a_shipped_captioner_comes_before_other_files_of_its_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    expected = lightning_idc.load(shipped_models()[name], device="cpu").input_spec
    (tmp_path / name / "before").mkdir(parents=True)
    shutil.copy(lightning_idc.sample_pair(name)[0], tmp_path / name / "before")
    assert resolve(name) == shipped_models()[name]
    assert lightning_idc.load(name, device="cpu").input_spec == expected
    shutil.rmtree(tmp_path / name)
    (tmp_path / name).write_text("notes", encoding="utf-8")
    assert resolve(name) == shipped_models()[name]
    assert lightning_idc.load(name, device="cpu").input_spec == expected
