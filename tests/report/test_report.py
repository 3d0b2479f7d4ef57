"""Tables, contact sheets and the callback that shows them at the end of a test."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer
from PIL import Image, ImageFont
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parent.parent / "contract"))
from test_addons import QUIET, fit
from tiny import TinyCaptioner, TinyPairs

from lightning_idc.callbacks.show_results import ShowResults
from lightning_idc.metrics.captions import score_captions
from lightning_idc.report.results import spread
from lightning_idc.report.sheet import Card, _wrap, contact_sheet
from lightning_idc.report.table import as_rich, summarise

RECORDS = [
    {"id": "a", "caption": "the red cube moved", "references": ["the red cube moved"], "change_type": "move"},
    {"id": "b", "caption": "nothing", "references": ["the blue ball is gone"], "change_type": "drop"},
    {"id": "c", "caption": "the red cube moved", "references": ["the red cube turned green"], "change_type": "color"},
]


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
    chosen = spread(records, 5)
    assert [r["change_type"] for r in chosen] == ["a", "b", "a", "b", "a"]
    assert chosen == spread(records, 5)
    assert len(spread(records, 50)) == 20


def test_the_callback_writes_what_it_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = fit([], tmp_path, TinyCaptioner(), max_steps=2)
    Trainer(callbacks=[ShowResults(examples=3)], default_root_dir=tmp_path, **QUIET).test(
        model, TinyPairs(), verbose=False
    )
    predictions = json.loads((tmp_path / "predictions.json").read_text())
    assert [record["id"] for record in predictions] == [f"{500 + n}" for n in range(7)]
    assert json.loads((tmp_path / "scores.json").read_text())["pairs"]["all"] == 7
    with Image.open(tmp_path / "contact_sheet.png") as sheet:
        assert sheet.width > 500
    printed = capsys.readouterr().out
    assert "7 pairs, 21 references" in printed
    assert printed.count("truth") == 3
    assert not list(tmp_path.glob("*.partial"))
