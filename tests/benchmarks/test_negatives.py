"""The study of ADPO's negatives: the negatives of several stages side by side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.studies.negatives import side_by_side


def stage(folder: Path, name: str, negatives: dict[str, str]) -> None:
    pairs = {
        id: {"positive": f"the {id} cube moved", "negative": text, "margin": 0.5} for id, text in negatives.items()
    }
    (folder / name).mkdir()
    (folder / name / "negatives.json").write_text(json.dumps(pairs))


def test_pairs_of_all_stages_stand_side_by_side(tmp_path: Path) -> None:
    stage(tmp_path, "dpo", {"red": "nothing changed", "blue": "a ball vanished", "gray": "so be it"})
    stage(tmp_path, "adpo", {"red": "the red ball moved", "blue": "the blue cube vanished"})
    lines = side_by_side(tmp_path, 2).splitlines()
    assert lines[0] == "blue" and lines[4] == "red" and "gray" not in lines
    assert lines[1].split() == ["positive", "the", "blue", "cube", "moved"]
    by_stage = {line.split()[0]: line for line in lines[5:8]}
    assert "nothing changed" in by_stage["dpo"] and "the red ball moved  (margin +0.50)" in by_stage["adpo"]
    # negative and positive share 3 of 5 words in both pairs of adpo, and none in the pairs of dpo
    assert {line.split()[0]: line.split()[1] for line in lines[-2:]} == {"adpo": "60", "dpo": "0"}
    assert side_by_side(tmp_path, 1, seed=0) == side_by_side(tmp_path, 1, seed=0)


def test_stages_without_a_common_pair(tmp_path: Path) -> None:
    stage(tmp_path, "dpo", {"red": "nothing changed"})
    stage(tmp_path, "adpo", {"blue": "nothing changed"})
    with pytest.raises(ValueError, match=r"no pair was compared by all stages of .*adpo"):
        side_by_side(tmp_path, 3)
