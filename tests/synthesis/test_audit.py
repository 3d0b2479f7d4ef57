"""The audit page: complete, self-contained and safe."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from helpers.toy_stages import Numbers

from lightning_idc.synthesis.audit import Audit, _balanced_counts
from lightning_idc.synthesis.records import Record
from lightning_idc.synthesis.run import run
from lightning_idc.synthesis.stages import MapStage, Sequential

EVIL = "</script><script>alert(1)</script><!--"


def make(record: Record) -> Record:
    number = record.facts["number"]
    for side in ("before", "after"):
        record.put(side, torch.full((3, 40, 60), 10 * number % 256, dtype=torch.uint8))
    record.facts["captions"] = [EVIL, "a\u202eb"]
    record.facts["size"] = [40, 60]
    record.facts["areas"] = [
        {"box": [6, 4, 30, 20], "confidence": 0.9, "similarity": 0.1, "match": [0.5, None], "captions": ["a cup", EVIL],
         "difference": "a cup was removed", "dropped": None},
        {"box": [0, 0, 3, 4], "confidence": 0.01,
         "dropped": {"reason": "confidence", "value": 0.01, "limit": "above 0.05"}},
    ]  # fmt: skip
    record.score(pair_similarity=number / 10)
    if number % 3 == 0:
        record.drop("pair too similar", number / 10, "0.9 to 0.98")
    return record


def page(tmp_path: Path, **options: int) -> str:
    run(
        Sequential([MapStage(make), Audit(str(tmp_path / "audit.html"), **options)]),
        Numbers(10, broken=[]),
        tmp_path / "a",
    )
    return (tmp_path / "audit.html").read_text(encoding="utf-8")


def data_of(html: str) -> dict[str, list[dict[str, object]]]:
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert match is not None
    return json.loads(match[1])


def pictures_of(html: str) -> list[list[str]]:
    """Return the image addresses of each pair."""
    return [json.loads(text) for text in re.findall(r'<script type="application/json" id="pictures-\d+">(.*)<', html)]


@pytest.mark.slow
def test_page_has_boxes_scores_and_reasons(tmp_path: Path) -> None:
    html = page(tmp_path)
    pairs = data_of(html)["pairs"]
    assert len(pairs) == 10
    assert [pair["reason"] for pair in pairs[:3]] == ["pair too similar", None, None]
    assert pairs[0]["details"] == "found 0.0, expected 0.9 to 0.98"
    first, second = pairs[1]["areas"]  # type: ignore[misc]
    assert first["box"] == [0.1, 0.1, 0.5, 0.5] and first["reason"] is None
    assert first["scores"] == {"confidence": 0.9, "similarity": 0.1, "match before": 0.5}
    assert "a cup was removed" in first["texts"]
    assert (second["reason"], second["details"]) == ("confidence", "found 0.01, expected above 0.05")
    assert pairs[1]["scores"] == {"pair_similarity": 0.1}
    assert data_of(html)["areas"] == {"kept": 10, "confidence": 10}
    assert pairs[1]["pictures"] == 2 and list(map(len, pictures_of(html))) == [2] * 10
    assert re.search(r'<th scope="row">kept</th><td>6</td>', html)
    assert re.search(r'<th scope="row">pair too similar</th><td>4</td>', html)


def test_captions_are_escaped_and_no_url_is_loaded(tmp_path: Path) -> None:
    html = page(tmp_path)
    assert "alert(1)</script>" not in html and "\u202e" not in html
    assert html.count("<script>") == 1 and html.count("<script") == 2 + len(pictures_of(html)), "data do not run"
    assert "default-src 'none'" in html
    assert not re.search(r'(?:src|href)="(?!data:)', html.split('id="data"')[0])


def test_max_pairs_keeps_all_reasons_and_counts(tmp_path: Path) -> None:
    html = page(tmp_path, max_pairs=4)
    reasons = [pair["reason"] for pair in data_of(html)["pairs"]]
    assert sorted(map(str, reasons)) == ["None", "None", "pair too similar", "pair too similar"]
    assert "<td>6</td>" in html and "10 pairs, 4 of them shown" in html
    assert data_of(html)["areas"] == {"kept": 10, "confidence": 10}
    assert _balanced_counts({"kept": 100, "rare": 1, "other": 50}, 21) == {"kept": 10, "rare": 1, "other": 10}


def test_record_without_pair_is_displayed_with_its_image(tmp_path: Path) -> None:
    def single(record: Record) -> Record:
        record.put("image", torch.zeros(3, 40, 60, dtype=torch.uint8))
        record.drop("no similar image", None, "in both windows")
        return record

    run(Sequential([MapStage(single), Audit(str(tmp_path / "audit.html"))]), Numbers(3, broken=[]), tmp_path / "a")
    html = (tmp_path / "audit.html").read_text(encoding="utf-8")
    assert [pair["pictures"] for pair in data_of(html)["pairs"]] == [1, 1, 1]
    assert list(map(len, pictures_of(html))) == [1, 1, 1]


def test_unreadable_image_does_not_break_the_page(tmp_path: Path) -> None:
    def gone(record: Record) -> Record:
        record.images = {"before": b"", "after": b"not an image"}
        return record

    run(Sequential([MapStage(gone), Audit(str(tmp_path / "audit.html"))]), Numbers(3), tmp_path / "a")
    html = (tmp_path / "audit.html").read_text(encoding="utf-8")
    assert [pair["pictures"] for pair in data_of(html)["pairs"]] == [0, 0, 0]


def test_failures_and_stage_times_are_displayed(tmp_path: Path) -> None:
    def fails(record: Record) -> Record:
        if record.facts["number"] == 2:
            raise ValueError("no such colour")
        return make(record)

    run(MapStage(fails), Numbers(5), tmp_path / "draw" / "records")
    run(Audit(str(tmp_path / "audit.html")), str(tmp_path / "draw" / "records"), tmp_path / "audit" / "records")
    html = (tmp_path / "audit.html").read_text(encoding="utf-8")
    (failed,) = [pair for pair in data_of(html)["pairs"] if pair["reason"] == "error"]
    assert failed["details"] == "found ValueError: no such colour, expected no error"
    assert re.search(r'<th scope="row">error</th><td>1</td>', html)
    for stage in (r"MapStage \(draw\)", r"Audit \(audit\)"):
        assert re.search(stage + r"</\w+>\s*<\w+>[\d.]+ s of processing, \S+ records per second", html), stage
