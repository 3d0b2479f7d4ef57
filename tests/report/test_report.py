"""Tables, contact sheets and the callback that shows them at the end of a test."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tiny import TinyCaptioner, TinyPairs
from helpers.training import QUIET, fit
from lightning.pytorch import Trainer
from PIL import Image, ImageFont
from rich.console import Console

from lightning_idc.callbacks.show_results import ShowResults
from lightning_idc.cli import main
from lightning_idc.data import FolderPairs
from lightning_idc.data.source import PairSource
from lightning_idc.images.types import Caption, PairSample
from lightning_idc.metrics.captions import score_captions
from lightning_idc.report.baselines import check_baselines
from lightning_idc.report.html import Entry, write_report
from lightning_idc.report.results import Results, select_evenly
from lightning_idc.report.sheet import Card, _wrap, contact_sheet
from lightning_idc.report.summary import as_rich, summarise
from lightning_idc.report.table import Table
from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.outputs import write_file

RECORDS = [
    {"id": "a", "caption": "the red cube moved", "references": ["the red cube moved"], "change_type": "move"},
    {"id": "b", "caption": "nothing", "references": ["the blue ball is gone"], "change_type": "drop"},
    {"id": "c", "caption": "the red cube moved", "references": ["the red cube turned green"], "change_type": "color"},
]


def records_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def summary():  # type: ignore[no-untyped-def]
    scores = score_captions({r["id"]: r["caption"] for r in RECORDS}, {r["id"]: r["references"] for r in RECORDS})
    facts = {"a": {"type": True, "relation": None}, "b": {"type": False, "relation": True}, "c": {"type": True}}
    return scores, summarise(RECORDS, scores, facts)


def test_rows_are_means_over_their_pairs() -> None:
    scores, found = summary()
    assert list(found.rows) == ["all", "color", "drop", "move"]
    assert found.counts == {"all": 3, "color": 1, "drop": 1, "move": 1}
    assert found.rows["all"]["BLEU-4"] == scores.values["BLEU-4"]
    assert "BLEU-4" not in found.rows["move"]
    assert found.rows["move"]["ROUGE-L"] == pytest.approx(100)
    assert found.rows["all"]["type"] == pytest.approx(200 / 3)
    assert found.rows["all"]["relation"] == 100
    assert "relation" not in found.rows["move"]


def test_changes_without_a_type_have_a_row_next_to_no_change() -> None:
    def rows(*kinds: str) -> list[str]:
        records = [{**record, "change_type": kind} for record, kind in zip(RECORDS, kinds, strict=True)]
        return list(summarise(records, summary()[0], {}).rows)

    assert rows("change", "no_change", "change") == ["all", "change", "no_change"]
    assert rows("change", "change", "change") == ["all"], "all pairs have a row already"


def test_rows_for_the_least_and_the_most_overlap() -> None:
    records = [{**RECORDS[n % 3], "id": str(n), "change_type": "no_change" if n > 7 else "move"} for n in range(12)]
    scores = score_captions({r["id"]: r["caption"] for r in records}, {r["id"]: r["references"] for r in records})
    found = summarise(records, scores, {}, {str(n): 1 - n / 20 for n in range(12)})
    assert found.counts == {"all": 12, "move": 8, "no_change": 4, "hardest quarter": 2, "easiest quarter": 2}
    expected = scores.per_pair["CIDEr-D"][[scores.ids.index("6"), scores.ids.index("7")]].mean()
    assert found.rows["hardest quarter"]["CIDEr-D"] == pytest.approx(expected)
    assert "hardest quarter" not in summarise(records, scores, {}, {"0": 0.5}).rows


class Overlapping(TinyPairs):
    """Pairs with a known overlap of their views."""

    def source(self, split: str) -> PairSource:
        source = super().source(split)
        source.meta = lambda index: {"iou": (int(source.ids[index]) - 500) / 10}  # type: ignore[method-assign]
        return source


@pytest.mark.slow
def test_overlaps_of_the_data_reach_predictions_and_protocols(tmp_path: Path) -> None:
    model = fit([], tmp_path, TinyCaptioner(), max_steps=1)
    shown = ShowResults(examples=0, report_pairs=0, protocol="clevr-change/by-iou")
    Trainer(callbacks=[shown], default_root_dir=tmp_path, **QUIET).test(model, Overlapping(), verbose=False)
    predictions = records_of(tmp_path / "predictions.jsonl")
    assert [record["iou"] for record in predictions] == [n / 10 for n in range(7)]
    result = json.loads((tmp_path / "metrics.json").read_text())
    assert {name: part["pairs"] for name, part in result["counts"].items()} == {
        "change": 7,
        "hardest quarter": 1,
        "easiest quarter": 1,
    }
    assert result["summary"]["pairs"]["hardest quarter"] == 1
    inputs = ["score", str(tmp_path / "predictions.jsonl"), "--protocol", "clevr-change/by-iou", "--metrics", "BLEU"]
    assert main(inputs) == 0, "the file alone is enough to score it so again"


def test_the_table_reads_without_a_terminal() -> None:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(as_rich(summary()[1], "a title"))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= 100
    assert any(line.split()[:2] == ["all", "3"] for line in lines)


def test_long_words_are_cut_to_the_width() -> None:
    font = ImageFont.load_default(15)
    lines = _wrap("short " + "x" * 150 + " end", font, 120)
    assert all(font.getlength(line) <= 120 for line in lines)
    assert "".join(lines).count("x") == 150


def test_a_sheet_holds_every_card() -> None:
    image = torch.randint(0, 255, (3, 20, 30), dtype=torch.uint8)
    cards = [
        Card(image, image, f"pair {n}", "the cube moved", "the cube was moved", right)
        for n, right in enumerate([True, False, None, True])
    ]
    sheet = contact_sheet(cards, columns=3, image_height=60)
    assert sheet.width > 3 * 2 * 90
    assert sheet.height > 2 * 60


def test_examples_take_turns_between_types() -> None:
    records = [{"id": str(n), "change_type": "ab"[n % 2], "references": ["x"]} for n in range(20)]
    chosen = select_evenly(records, 5)
    assert [r["change_type"] for r in chosen] == ["a", "b", "a", "b", "a"]
    assert chosen == select_evenly(records, 5)
    assert len(select_evenly(records, 50)) == 20


def test_the_callback_writes_what_it_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = fit([], tmp_path, TinyCaptioner(), max_steps=2)
    Trainer(callbacks=[ShowResults(examples=3)], default_root_dir=tmp_path, **QUIET).test(model, TinyPairs())
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {
        "predictions.jsonl", "metrics.json", "report.html",
    }  # fmt: skip
    predictions = records_of(tmp_path / "predictions.jsonl")
    assert [record["id"] for record in predictions] == [f"{500 + n}" for n in range(7)]
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["summary"]["pairs"]["all"] == metrics["counts"]["all"]["pairs"] == 7
    printed = capsys.readouterr().out
    assert "7 pairs, 21 references" in printed
    assert printed.count("    reference ") == 3
    assert "Test metric" not in printed, "Lightning's own table of the same scores"
    assert "other metrics: loss" in printed and "BLEU-1" not in printed.split("other metrics")[1].splitlines()[0]
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("channels", [1, 3, 4, 6])
def test_images_of_any_number_of_channels_are_shown(channels: int, tmp_path: Path) -> None:
    """Captioners can have any number of bands; their images are shown as RGB."""
    image = torch.full((channels, 200, 300), 7, dtype=torch.uint8)
    write_report(tmp_path / "r.html", "t", [Entry("a", "c", ["r"], images=(image, image))], full_size=True)
    with Image.open(tmp_path / "r_pictures" / "000001_after.jpg") as shown:
        assert shown.mode == "RGB" and shown.getpixel((5, 5)) == (7, 7, 7)
    assert contact_sheet([Card(image, image, "t", "c")]).mode == "RGB"


def test_the_report_shows_the_original_images(tmp_path: Path) -> None:
    """A very thin change would be blurred in the smaller image that the captioner gets."""
    for number, (side, size) in enumerate((("before", (2048, 512)), ("after", (1024, 256)))):
        (tmp_path / side).mkdir()
        Image.new("RGB", size, (90 * number, 120, 120)).save(tmp_path / side / "a.png")
    (tmp_path / "captions.csv").write_text("id,captions,split\na,it is redder,test\n")
    data = FolderPairs(tmp_path, image_size=32)
    record = {"id": "a", "caption": "c", "references": ["r"], "change_type": None, "log_prob": None}
    (entry,) = Results([record], None, data, "test").entries([record])
    assert entry.images is not None and [image.shape for image in entry.images] == [(3, 256, 1024)] * 2
    assert entry.images[1][0].eq(90).all()
    # boxes refer to the image that the captioner gets
    boxed = PairSample("a", torch.zeros(3, 32, 32).byte(), torch.zeros(3, 32, 32).byte(), boxes=torch.ones(1, 2, 4) * 8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(data.pairs_of("test")), "load", lambda source, index: boxed)
        (entry,) = Results([record], None, data, "test").entries([record])
    assert entry.boxes is not None and entry.boxes[0, 0].tolist() == [256.0, 64.0, 256.0, 64.0]


def test_the_file_of_a_prediction_is_not_replaced_by_a_test(tmp_path: Path) -> None:
    write_file(tmp_path / "predictions.jsonl", "of hours")  # as WritePredictions does
    trainer = Trainer(callbacks=[ShowResults()], default_root_dir=tmp_path, **QUIET)
    with pytest.raises(ConfigError, match=r"ShowResults: .*predictions\.jsonl' exists"):
        trainer.test(TinyCaptioner(), TinyPairs())
    assert (tmp_path / "predictions.jsonl").read_text() == "of hours"


def test_cells_are_text_in_every_form() -> None:
    evil = "<script>alert(1)</script> a|b *c* [x](y) `d` _e_ f_g 5 % & # $ {h} ~ ^ \\ ± \u202e"
    table = Table(["model", "CIDEr-D"], [[evil, "12.0"], ["good", "3.5"]], notes=[evil])
    markdown = table.markdown()
    assert "<script" not in markdown and "a\\|b" in markdown and "f_g" in markdown
    assert not set("*`") & set(markdown) and "](" not in markdown, "emphasis, code and links of a caption"
    assert len({len(line) for line in markdown.splitlines()}) == 1
    latex = table.latex()
    assert r"5 \% \& \# \$ \{h\} \textasciitilde \space \textasciicircum \space \textbackslash \space ±" in latex
    assert r"\textless{}script\textgreater{}alert" in latex and r"a\textbar{}b" in latex
    assert latex.splitlines()[0] == r"\begin{tabular}{lr}" and "\u202e" not in latex + markdown
    console = Console(width=60, record=True, file=io.StringIO())
    wide = Table(["model", *(f"metric {n}" for n in range(9))], [["[bold]x[/]", *"123456789"]], "t")
    console.print(wide.rich(60))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= 60 and sum("[bold]x[/]" in line for line in lines) > 1, "columns go on below"


def test_a_blind_captioner_is_named_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A captioner with one caption for all pairs gets a score and a warning that it does not use the images."""
    captioner = TinyCaptioner()
    captioner.generate = lambda features, **options: [Caption("the cube moved", -1.0)] * len(features.memory)  # type: ignore[assignment]
    model = fit([], tmp_path, captioner, max_steps=1)
    Trainer(callbacks=[ShowResults()], default_root_dir=tmp_path, **QUIET).test(model, TinyPairs())
    printed = capsys.readouterr().out
    assert (
        "constant caption" in printed and "identical images" in printed and "1 distinct caption for 7 pairs" in printed
    )
    assert "1 caption for 7 pairs: this captioner does not use the images" in printed
    check = json.loads((tmp_path / "metrics.json").read_text())["baseline_check"]
    assert set(check["over"]) == {"constant caption", "identical images"} and check["distinct"] == 1
    page = (tmp_path / "report.html").read_text()
    assert 'role="alert"' in page and "does not use the images" in page
    capsys.readouterr()
    assert main(["leaderboard", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "constant caption" in printed and "does not use the images" in printed


def test_few_distinct_captions_are_a_warning_unless_identical_images_score_lower() -> None:
    references = {str(n): [f"the {('red', 'blue')[n % 2]} cube moved"] for n in range(200)}
    captions = {id: texts[0] for id, texts in references.items()}
    nothing = dict.fromkeys(captions, "nothing changed")
    seeing, unknown = (check_baselines(captions, references, "the red cube moved", same) for same in (nothing, None))
    assert seeing is not None and unknown is not None and not seeing.warning
    assert unknown.warning == "2 distinct captions for 200 pairs: this captioner does not use the images"


def test_a_captioner_that_looks_has_no_warning() -> None:
    colors = ["red", "blue", "green", "gray", "brown", "cyan", "purple", "yellow"]
    references = {str(n): [f"the {color} cube moved"] for n, color in enumerate(colors)}
    captions = {id: texts[0] for id, texts in references.items()}
    check = check_baselines(captions, references, "the red cube moved", dict.fromkeys(captions, "the blue cube moved"))
    assert check is not None and check.warning == "" and check.distinct == 8
    assert check.over["constant caption"].low > 0 < check.over["identical images"].low
    assert check_baselines({"0": "x"}, references) is None, "one pair decides nothing"


def test_the_title_of_a_narrow_table_is_one_line() -> None:
    console = Console(width=60, record=True)
    console.print(Table(["a"], [["1"]], "a title that is longer than the table").rich(60))
    assert "a title that is longer than the table\n" in console.export_text()
