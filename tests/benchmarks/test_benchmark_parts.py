"""Parts of a study that ran one by one become the study that one run would have been."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from lightning_idc.report.comparison import Captioned
from lightning_idc.utils.errors import DataError

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
REFERENCES = {
    f"p{n}": [f"the {colour} cube moved", f"the {colour} block is elsewhere"] for n, colour in enumerate("abcdef")
}
RIGHT = {id: texts[0] for id, texts in REFERENCES.items()}
VAGUE = dict.fromkeys(REFERENCES, "something moved")


@pytest.fixture
def studies(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import _study

    return _study


def captioned(captions: dict[str, str]) -> Captioned:
    facts = {
        id: {"type": text == RIGHT[id], "relation": text == RIGHT[id] if id < "p3" else None}
        for id, text in captions.items()
    }
    return Captioned(captions, dict.fromkeys(captions, "nothing changed"), facts)


def said(seed: int) -> dict[str, Captioned]:
    """Three captioners; the last gets as many pairs right as its seed says."""
    better = {id: RIGHT[id] if place < seed + 2 else VAGUE[id] for place, id in enumerate(REFERENCES)}
    return {"SFT": captioned(VAGUE), "SFT+": captioned(VAGUE | {"p0": RIGHT["p0"]}), "GRPO": captioned(better)}


def part(studies: Any, path: Path, seed: int, rows: tuple[str, ...], **settings: Any) -> Path:
    """A part of some rows of a seed, as a study keeps it."""
    given = argparse.Namespace(seeds=[seed], only=list(rows), part=path, out=None, cache=None, work=None, rate=0.1)
    study = studies.Study(REFERENCES, "something moved", ["SFT", "SFT+", "GRPO"], "SFT+")
    study.add(seed, {row: (said(seed)[row], {"missed": float(seed)}) for row in rows}, seconds=10.0 * seed)
    studies.keep(argparse.Namespace(**{**vars(given), **settings}), {"vague": study})
    return path


def test_parts_of_seeds_and_rows_are_the_study_of_one_run(studies: Any, tmp_path: Path, monkeypatch: Any) -> None:
    import merge_study

    parts = [
        part(studies, tmp_path / "2.json", 2, ("SFT", "SFT+", "GRPO")),
        part(studies, tmp_path / "1a.json", 1, ("SFT", "GRPO")),
        part(studies, tmp_path / "1b.json", 1, ("SFT", "SFT+")),
    ]
    out = tmp_path / "merged.json"
    monkeypatch.setattr(sys, "argv", ["merge_study.py", *map(str, parts), "--out", str(out)])
    merge_study.main()
    whole = studies.Study(REFERENCES, "something moved", ["SFT", "SFT+", "GRPO"], "SFT+")
    for seed in (1, 2):
        whole.add(seed, {row: (one, {"missed": float(seed)}) for row, one in said(seed).items()}, seconds=10.0 * 2)
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found["worlds"]["vague"] == json.loads(json.dumps(whole.as_dict()))
    assert found["seeds"] == [1, 2] and found["settings"] == {"rate": 0.1} and len(found["command"]) == 3
    gain = found["worlds"]["vague"]["over_control"]["GRPO"]
    assert gain["relation"]["each_seed"] == pytest.approx([200 / 3, 200 / 3])
    assert gain["type"]["each_seed"] == pytest.approx([100 / 3, 50.0])
    assert gain["CIDEr-D"]["interval"] is not None and gain["CIDEr-D"]["mean"] > 0


def test_rows_of_parts_that_differ_in_one_setting_are_compared(
    studies: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import merge_study

    short = part(studies, tmp_path / "short.json", 2, ("SFT", "GRPO"), rate=0.1)
    long = part(studies, tmp_path / "long.json", 2, ("SFT+",), rate=[1, 2])
    out = tmp_path / "merged.json"
    given = ["merge_study.py", str(short), str(long), "--by", "rate", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", [*given, "--control", "SFT+, rate 1 2"])
    merge_study.main()
    found = json.loads(out.read_text(encoding="utf-8"))
    assert list(found["worlds"]["vague"]["summary"]) == ["SFT, rate 0.1", "GRPO, rate 0.1", "SFT+, rate 1 2"]
    assert found["worlds"]["vague"]["over_control"].keys() == {"SFT, rate 0.1", "GRPO, rate 0.1"}
    assert found["settings"] == {} and len(found["command"]) == 2
    monkeypatch.setattr(sys, "argv", [*given, "--control", "SFT+"])
    with pytest.raises(DataError, match=r"the rows are SFT, rate 0\.1"):
        merge_study.main()
    monkeypatch.setattr(sys, "argv", ["merge_study.py", str(short), "--by", "steps"])
    with pytest.raises(DataError, match="the parts have rate"):
        merge_study.main()
    monkeypatch.setattr(sys, "argv", ["merge_study.py", str(short), "--control", "SFT"])
    with pytest.raises(SystemExit):
        merge_study.main()


def test_parts_that_do_not_belong_together_are_refused(studies: Any, tmp_path: Path) -> None:
    import merge_study

    first = part(studies, tmp_path / "1.json", 1, ("SFT", "GRPO"))
    with pytest.raises(DataError, match="differ in rate"):
        merge_study.read([first, part(studies, tmp_path / "other.json", 2, ("SFT", "GRPO"), rate=0.2)])
    with pytest.raises(DataError, match="seed 2 lacks GRPO"):
        merge_study.merged(merge_study.read([first, part(studies, tmp_path / "2.json", 2, ("SFT",))]))
    changed = json.loads(first.read_text(encoding="utf-8"))
    changed["worlds"]["vague"]["runs"][0]["said"]["SFT"]["captions"]["p0"] = "a cube"
    (tmp_path / "changed.json").write_text(json.dumps(changed), encoding="utf-8")
    with pytest.raises(DataError, match="SFT does not say the same"):
        merge_study.merged(merge_study.read([first, tmp_path / "changed.json"]))
    (tmp_path / "summary.json").write_text(json.dumps({"worlds": {"vague": {"summary": {}}}}), encoding="utf-8")
    with pytest.raises(DataError, match="--part"):
        merge_study.read([first, tmp_path / "summary.json"])


def test_what_other_settings_or_another_commit_made_is_not_taken(
    studies: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def figures(**settings: Any) -> dict[str, float]:
        given = argparse.Namespace(work=tmp_path, seeds=[1], only=None, prepare=None, **settings)

        def train(target: Path) -> dict[str, float]:
            made.append(given.epochs)
            return {"epochs": float(given.epochs)}

        with studies.kept_in(given) as folder:
            return dict(studies.figures_of(folder / "first.ckpt", train))

    assert figures(epochs=24) == figures(epochs=24) == {"epochs": 24.0}
    assert figures(epochs=64) == {"epochs": 64.0}
    assert made == [24, 64]
    monkeypatch.setattr(studies, "commit", lambda: "another")
    figures(epochs=24)
    assert made == [24, 64, 24]


def test_a_study_without_a_place_for_its_work_leaves_nothing(studies: Any) -> None:
    with studies.kept_in(argparse.Namespace(work=None)) as folder:
        assert folder.is_dir()
    assert not folder.exists()
