"""Quotes of changed texts. Oracles: texts drawn with Pillow, and a reader with known results."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from lightning_idc.cli import main
from lightning_idc.images.types import PairSample
from lightning_idc.serve.answer import Answer
from lightning_idc.serve.quoting import QuotingDescriber, TextReader, quoted
from lightning_idc.serve.rules_captioner import RulesCaptioner
from lightning_idc.utils.errors import ConfigError

torch.set_num_threads(1)
needs_ocr = pytest.mark.skipif(find_spec("rapidocr") is None, reason="needs RapidOCR, of the extra [ocr]")
LINES = ["Released on 12 May", "Version 15.18 of the server", "Read more in the manual"]
CHANGED = [LINES[0], "Version 15.20 of the server", LINES[2]]
BOX = [20, 40, 260, 64]
TEXT, ADDED = "the text of a link says something else", "a paragraph was added"


def page(lines: list[str]) -> Image.Image:
    image = Image.new("RGB", (400, 120), "white")
    for number, line in enumerate(lines):
        ImageDraw.Draw(image).text((20, 10 + 34 * number), line, "black", font=ImageFont.load_default(18))
    return image


def tensor(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image).transpose(2, 0, 1).copy())


def about(caption: str, boxes: list[list[int]] | None = None, size: tuple[int, int] = (400, 120)) -> Answer:
    return Answer("a", caption, None, 0.9, True, boxes or [], None, size)


class Known:
    """A reader that returns given texts in turn, and records the sizes of its inputs."""

    def __init__(self, *texts: str) -> None:
        self.texts, self.sizes = list(texts), list[tuple[int, ...]]()

    def read(self, image: np.ndarray) -> str:
        self.sizes.append(image.shape)
        return self.texts.pop(0)


def caption_of(answer: Answer, *texts: str) -> str:
    return quoted(answer, tensor(page(LINES)), tensor(page(CHANGED)), Known(*texts)).caption


def test_the_words_that_differ_are_quoted() -> None:
    assert caption_of(about(TEXT, [BOX]), LINES[1], CHANGED[1]) == 'the text of a link says "15.20" instead of "15.18"'
    expected = 'The text in the upper left changed: "15.20" instead of "15.18"'
    assert caption_of(about("The text in the upper left changed."), LINES[1], CHANGED[1]) == expected
    assert caption_of(about(ADDED, [BOX]), CHANGED[1]) == f'{ADDED}: "{CHANGED[1]}"'


@pytest.mark.parametrize(
    ("answer", "texts"),
    [
        (about("the color of a link is another one", [BOX]), ()),
        (about("The text changed. A link was removed.", [BOX]), ()),
        (about(ADDED), ()),
        (about(TEXT, [[300, 90, 390, 110]]), ()),
        (about(TEXT, [[2 * side for side in BOX]], (800, 240)), ()),
        (about(TEXT, [BOX]), ("", CHANGED[1])),
        (about(TEXT, [BOX]), (LINES[1], LINES[1])),
    ],
    ids=["another property", "two claims", "no box", "no change in the box", "resized", "unreadable", "equal"],
)
def test_other_sentences_stay_as_they_are(answer: Answer, texts: tuple[str, ...]) -> None:
    assert caption_of(answer, *texts) == answer.caption


def test_the_changed_line_is_read_up_to_its_ends() -> None:
    for boxes in ([BOX], []):
        reader = Known(LINES[1], CHANGED[1])
        quoted(about(TEXT, boxes), tensor(page(LINES)), tensor(page(CHANGED)), reader)
        ((_, height, width), same) = reader.sizes
        assert same == (3, height, width) and 20 < height < 40 and 220 < width < 280


def test_a_describer_with_quotes_answers_as_the_other_one() -> None:
    describer = QuotingDescriber(RulesCaptioner(), Known())
    sample = PairSample("a", tensor(page(LINES)), tensor(page(LINES)))
    assert describer.answer([sample]) == RulesCaptioner().answer([sample])
    assert describer.prediction_key([]) != RulesCaptioner().prediction_key([])


@needs_ocr
@pytest.mark.slow
def test_text_is_read_in_the_order_of_its_lines() -> None:
    reader = TextReader()
    assert reader.read(tensor(page(LINES)).numpy()) == " ".join(LINES)
    assert reader.read(tensor(page([])).numpy()) == ""
    assert reader.read(tensor(page(["i18"])).numpy()[:, 8:34, 10:60]) == "i18"


@needs_ocr
@pytest.mark.slow
def test_compare_quotes_what_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, lines in (("before", LINES), ("after", CHANGED)):
        (tmp_path / name).mkdir()
        page(lines).save(tmp_path / name / "page.png")
    out = tmp_path / "out.jsonl"
    main(["compare", str(tmp_path / "before"), str(tmp_path / "after"), "--ocr", "--out", str(out)])
    (record,) = map(json.loads, out.read_text().splitlines())
    assert record["caption"].endswith('"15.20" instead of "15.18"'), record["caption"]


def test_a_missing_reader_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "rapidocr", None)
    with pytest.raises(ConfigError, match="install lightning_idc\\[ocr\\]"):
        TextReader()
