"""case-study: the negatives of several stages side by side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lightning_idc.cli import main
from lightning_idc.cli.case_study import case_study
from lightning_idc.utils.errors import DataError


def stage(folder: Path, name: str, negatives: dict[str, str]) -> None:
    home = folder / name
    home.mkdir()
    met = {id: {"positive": f"the {id} cube moved", "negative": text, "margin": 0.5} for id, text in negatives.items()}
    (home / "negatives.json").write_text(json.dumps(met))


def test_pairs_that_all_stages_met_stand_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stage(tmp_path, "dpo", {"red": "nothing changed", "blue": "a ball vanished", "gray": "so be it"})
    stage(tmp_path, "adpo", {"red": "the red ball moved", "blue": "the blue cube vanished"})
    assert main(["case-study", str(tmp_path), "--rows", "2"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "blue" and shown[4] == "red" and "gray" not in shown
    assert shown[1].split() == ["positive", "the", "blue", "cube", "moved"]
    by_stage = {line.split()[0]: line for line in shown[5:8]}
    assert "nothing changed" in by_stage["dpo"] and "the red ball moved  (margin +0.50)" in by_stage["adpo"]
    # 3 of 5 words for both pairs of adpo; none for red and none for blue of dpo
    assert {line.split()[0]: line.split()[1] for line in shown[-2:]} == {"adpo": "60", "dpo": "0"}
    assert case_study(tmp_path, 1, seed=0) == case_study(tmp_path, 1, seed=0)


def test_what_cannot_be_compared_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DataError, match=r"has a negatives\.json"):
        case_study(tmp_path, 3)
    stage(tmp_path, "dpo", {"red": "nothing changed"})
    stage(tmp_path, "adpo", {"blue": "nothing changed"})
    assert main(["case-study", str(tmp_path)]) == 1
    assert "no pair was met by all of" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["case-study", str(tmp_path), "--rows", "0"])
    assert "at least 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        '{"red": ',
        "[]",
        '{"red": {"positive": "a cube moved"}}',
        '{"red": ["positive", "negative", "margin"]}',
        '{"red": {"positive": "a cube moved", "negative": 2, "margin": null}}',
        '{"red": {"positive": "a cube moved", "negative": "a", "margin": "0.1"}}',
    ],
)
def test_damaged_negatives_are_named(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "dpo").mkdir()
    (tmp_path / "dpo" / "negatives.json").write_text(text)
    assert main(["case-study", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and "dpo/negatives.json" in error and "is damaged" in error
