"""`merge.py`. Oracle: the same study in a single process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.studies.harness import Study
from benchmarks.studies.merge import merged, read
from lightning_idc.report.comparison import Captioned
from lightning_idc.utils.errors import DataError

IDS = [f"{number:02}" for number in range(20)]
SENTENCES = ("one cube moved to the left", "two spheres became red again", "the lamp near the door is gone")


def study() -> Study:
    """Two rows in three trainings; the second row has more correct types, also of identical images."""
    references = {id: [SENTENCES[number % 3]] for number, id in enumerate(IDS)}
    made = Study(references, SENTENCES[0], ["SFT", "ADPO"], "SFT", unchanged=0.0)
    for seed in (1, 2, 3):
        rows = {}
        for name, right in (("SFT", 4), ("ADPO", 8 + seed)):
            captions = {id: SENTENCES[(number + (number >= right)) % 3] for number, id in enumerate(IDS)}
            identical = dict.fromkeys(IDS, SENTENCES[seed - 1])
            facts = {id: {"type": number < right} for number, id in enumerate(IDS)}
            seen = {id: {"type": number < right - 3} for number, id in enumerate(IDS)}
            rows[name] = Captioned(captions, identical, facts, seen), {"forced_choice": 50.0 + right}
        made.add(seed, rows, seconds=10.0)
    return made


def written(part: dict[str, Any], path: Path) -> Path:
    content = {"question": "q", "commit": "c", "settings": {"pairs": 20}, "worlds": {"vague": part}}
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def parts_of(single: dict[str, Any], folder: Path) -> list[Path]:
    """Write one part for each of the first two seeds, and one part per row for the last seed."""
    pieces = [[run] for run in single["runs"][:2]]
    last = single["runs"][2]
    pieces += [[{**last, **{kind: {row: last[kind][row]} for kind in ("said", "figures")}}] for row in ("SFT", "ADPO")]
    return [written({**single, "runs": runs}, folder / f"{number}.json") for number, runs in enumerate(pieces)]


def test_merged_parts_equal_a_single_study(tmp_path: Path) -> None:
    single = study()
    result = merged(read(parts_of(single.part(), tmp_path)))["vague"]
    expected = json.loads(json.dumps(single.as_dict()))
    actual = json.loads(json.dumps(result.as_dict()))
    assert actual.pop("notes")["3"] == {"seconds": 20.0}  # the sum of two parts
    assert expected.pop("notes")["3"] == {"seconds": 10.0}
    assert actual == expected
    assert actual["unchanged"] == 0.0 and actual["summary"]["ADPO"]["identical_facts"]["type"][0] == 35.0


def test_parts_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    single = study().part()
    paths = parts_of(single, tmp_path)
    with pytest.raises(DataError, match="seed 3 lacks ADPO"):
        merged(read(paths[:3]))
    other = json.loads(json.dumps(single["runs"][0]))
    other["said"]["SFT"]["captions"]["00"] = "something else"
    with pytest.raises(DataError, match="SFT does not say the same in two parts"):
        merged(read([*paths, written({**single, "runs": [other]}, tmp_path / "other.json")]))
    shares = written({**single, "unchanged": 0.5}, tmp_path / "shares.json")
    with pytest.raises(DataError, match="other pairs or rows"):
        merged(read([paths[0], shares]))
