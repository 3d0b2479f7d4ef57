"""The leaderboard of a folder of runs. Oracles: `statistics`, and `metrics.bootstrap.compare` on the same captions."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest
from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

from lightning_idc.callbacks.write_predictions import line_of
from lightning_idc.cli import main
from lightning_idc.metrics.bootstrap import compare
from lightning_idc.metrics.captions import Scores
from lightning_idc.metrics.grouping import ReferenceRecord
from lightning_idc.metrics.protocols import evaluate, protocol_named
from lightning_idc.metrics.results import METRICS, PREDICTIONS, Origin, make_result
from lightning_idc.report.hub_results import hub_entries
from lightning_idc.utils.outputs import save_json

WORDS = ["red", "blue", "cube", "ball", "moved", "gone", "left", "right", "small", "large"]
COMPUTED = ["BLEU", "ROUGE-L", "CIDEr-D"]


def truths(world: int = 0, pairs: int = 40) -> list[ReferenceRecord]:
    draw = random.Random(world)
    return [ReferenceRecord(f"p{n}", (" ".join(draw.choices(WORDS, k=6)),), None) for n in range(pairs)]


def said(of: list[ReferenceRecord], wrong: float, seed: int) -> dict[str, str]:
    """Captions made from the references by replacing this share of their words."""
    draw = random.Random(f"{wrong} {seed}")
    return {
        truth.id: " ".join(
            draw.choice(WORDS) if draw.random() < wrong else word for word in truth.references[0].split()
        )
        for truth in of
    }


def write_records(folder: Path, records: list[dict[str, Any]]) -> None:
    (folder / PREDICTIONS).write_text("".join(map(line_of, records)), encoding="utf-8")


def read_records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / PREDICTIONS).read_text(encoding="utf-8").splitlines()]


def write_run(
    run: Path, seed: int, captions: Mapping[str, str], of: list[ReferenceRecord], keys: Mapping[str, Any] | None = None
) -> Scores:
    """Write the files of a test stage, as a run of a recipe with ShowResults does."""
    protocol = protocol_named("coco")
    parts = evaluate(protocol, captions, of, COMPUTED)
    result = make_result(protocol, parts, captions, of, Origin("Net", "Pairs", "test", {"num_beams": 1}, seed))
    (run / "test").mkdir(parents=True)
    save_json(run / "test" / METRICS, result)
    records = [{"id": t.id, "caption": captions[t.id], "references": list(t.references)} for t in of]
    write_records(run / "test", records)
    overrides = {"seed_everything": seed, **(keys or {})}
    save_json(run / "run.json", {"recipe": "r.yaml", "digest": "1", "overrides": overrides})
    return parts["all"]


@pytest.mark.slow
def test_seeds_are_one_row_with_mean_deviation_and_p(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of, runs = truths(), tmp_path / "runs"
    good = [write_run(runs / "a" / f"seed_{n}", n, said(of, 0.2, n), of) for n in (1, 2, 3)]
    # three runs that were started separately, with another option
    dates = ["2026-01-01_10-00-00", "2026-01-01_11-00-00", "2026-01-02_10-00-00"]
    worse = [
        write_run(runs / "a" / date, n, said(of, 0.5, n), of, {"model.width": 8}) for n, date in enumerate(dates, 1)
    ]
    write_run(runs / "b" / dates[0], 1, said(of, 0.5, 1), of)
    other = truths(world=1)
    write_run(runs / "c" / dates[0], 1, said(other, 0.2, 1), other)
    out = tmp_path / "board.md"
    assert main(["leaderboard", str(runs), "--out", str(out)]) == 0
    assert capsys.readouterr().out.split() == [str(out.with_suffix(ending)) for ending in (".md", ".html", ".tex")]
    boards = out.read_text(encoding="utf-8").split("\n## ")[1:]
    assert len(boards) == 2, "other references are another board"
    board = next(text for text in boards if "a/seed_N" in text)
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in board.splitlines() if line.startswith("|")
    ]
    head, _, *cells = rows
    assert head == [
        "model", "BLEU-4", "ROUGE-L", "CIDEr-D", "seeds", "p (CIDEr-D)", "selected on", "captions", "file",
    ]  # fmt: skip
    assert len(cells) == 3 and cells[0][-1].startswith("a/seed_N")
    values = [scores.values["CIDEr-D"] for scores in good]
    assert cells[0][3] == f"{fmean(values):.1f} ± {stdev(values):.1f}" and cells[0][4:6] == ["3", "best"]
    averaged = [
        Scores({"CIDEr-D": 0.0}, {"CIDEr-D": np.mean([s.per_pair["CIDEr-D"] for s in group], 0)}, group[0].ids, 40)
        for group in (good, worse)
    ]
    p = compare(*averaged)["CIDEr-D"].p
    row = next(row for row in cells[1:] if row[4] == "3")
    assert p < 0.05 and row[5] == f"{p:.3f}"
    single = next(row for row in cells if row[4] == "1")
    assert "±" not in single[3] and float(single[5]) < 0.05
    assert "- the same captions: a/2026-01-0N/test/metrics.json, b/2026-01-01" in board
    latex = out.with_suffix(".tex").read_text(encoding="utf-8")
    body = [line for line in latex.splitlines() if not line.startswith("%")]
    assert "±" in latex and any(line.startswith(r"Net & ") for line in body)
    assert not any("metrics.json" in line for line in body), "a paper has no use for the names of files"
    assert "<table>" in out.with_suffix(".html").read_text(encoding="utf-8")
    assert main(["leaderboard", str(runs), "--format", "latex", "--samples", "0"]) == 0
    printed = capsys.readouterr().out
    assert r"\begin{tabular}" in printed and "p (CIDEr-D)" not in printed


def test_what_is_no_result_is_not_read_and_what_is_damaged_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of = truths()
    write_run(tmp_path / "runs" / "a", 1, said(of, 0.2, 1), of)
    (tmp_path / "runs" / "a" / "huge.json").write_text("{" * 100_000, encoding="utf-8")
    assert main(["leaderboard", str(tmp_path / "runs")]) == 0
    again = said(of, 0.3, 1)
    write_run(tmp_path / "runs" / "b" / "2026-01-01_10-00-00", 1, again, of)
    write_run(tmp_path / "runs" / "b" / "2026-01-01_10-00-01", 1, said(of, 0.4, 1), of)
    capsys.readouterr()
    assert main(["leaderboard", str(tmp_path / "runs")]) == 0
    printed = capsys.readouterr().out
    assert "b/2026-01-01_10-00-00/test/metrics.json: repeated with the same seed; the later run counts" in printed
    (tmp_path / "runs" / "a" / "run.json").write_text("{}", encoding="utf-8")
    assert main(["leaderboard", str(tmp_path / "runs")]) == 1
    assert "a/run.json cannot be read" in capsys.readouterr().err
    (tmp_path / "runs" / "b" / "metrics.json").write_text("", encoding="utf-8")
    assert main(["leaderboard", str(tmp_path / "runs")]) == 1
    assert "metrics.json: not JSON" in capsys.readouterr().err


def test_what_cannot_be_opened_is_named_and_a_folder_is_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of = truths()
    write_run(tmp_path / "a", 1, said(of, 0.2, 1), of)
    (tmp_path / "a" / "pairs.json").mkdir()
    (tmp_path / "pairs.json").mkdir()
    assert main(["leaderboard", str(tmp_path)]) == 0
    capsys.readouterr()
    link = tmp_path / "a" / "gone.json"
    link.symlink_to(tmp_path / "nowhere.json")
    assert main(["leaderboard", str(tmp_path)]) == 1
    assert f"{link} cannot be read" in capsys.readouterr().err
    link.unlink()
    write_run(tmp_path / "b", 1, said(of, 0.3, 1), of)
    damaged = tmp_path / "b" / "test" / "metrics.json"
    damaged.write_text("{", encoding="utf-8")
    assert main(["leaderboard", str(tmp_path)]) == 1
    assert f"{damaged}: not JSON" in capsys.readouterr().err, "every run has a file of this name"


def test_the_order_of_captions_changes_no_p(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of = truths()
    for name, wrong in (("a", 0.2), ("b", 0.25)):
        for seed in (1, 2, 3):
            write_run(tmp_path / name / f"seed_{seed}", seed, said(of, wrong, seed), of, {"wrong": wrong})
    assert main(["leaderboard", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "p (CIDEr-D)" in printed and "<0.001" not in printed
    for place in ("b/seed_2", "a/seed_1", "b/seed_1"):
        write_records(tmp_path / place / "test", read_records(tmp_path / place / "test")[::-1])
        assert main(["leaderboard", str(tmp_path)]) == 0
        assert capsys.readouterr().out == printed, place


def test_captions_with_other_references_have_no_p_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of = truths()
    for name, wrong in (("a", 0.1), ("b", 0.5)):
        write_run(tmp_path / name, 1, said(of, wrong, 1), of, {"wrong": wrong})
    assert main(["leaderboard", str(tmp_path)]) == 0
    assert " p (CIDEr-D) " in capsys.readouterr().out
    records = read_records(tmp_path / "b" / "test")
    for record in records:
        record["references"] = [record["caption"]]
    write_records(tmp_path / "b" / "test", records)
    assert main(["leaderboard", str(tmp_path)]) == 0
    assert " p (CIDEr-D) " not in capsys.readouterr().out


def test_results_are_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of = truths()
    write_run(tmp_path, 1, said(of, 0.2, 1), of)
    result = tmp_path / "test" / "metrics.json"
    kept = result.read_text(encoding="utf-8")
    assert main(["leaderboard", str(tmp_path), "--out", str(result)]) == 1
    assert "is an input and would be overwritten" in capsys.readouterr().err
    assert result.read_text(encoding="utf-8") == kept


def test_captions_that_were_changed_have_no_p(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of = truths()
    for name, wrong in (("a", 0.1), ("b", 0.5)):
        write_run(tmp_path / name, 1, said(of, wrong, 1), of, {"wrong": wrong})
    records = read_records(tmp_path / "b" / "test")
    records[0]["caption"] += " red"
    write_records(tmp_path / "b" / "test", records)
    assert main(["leaderboard", str(tmp_path)]) == 0
    assert " p (CIDEr-D) " not in capsys.readouterr().out


def test_entries_of_the_hub_have_its_own_form(tmp_path: Path) -> None:
    of = truths()
    write_run(tmp_path, 1, said(of, 0.2, 1), of)
    result = json.loads((tmp_path / "test" / METRICS).read_text())
    entries = hub_entries(result, "people/pairs")
    assert [entry["value"] for entry in entries] == list(result["scores"]["all"].values())
    # the hub's own writer is the oracle of the format
    theirs = [
        EvalResultEntry("people/pairs", entry["dataset"]["task_id"], entry["value"], notes=entry["notes"])
        for entry in entries
    ]
    assert entries == eval_result_entries_to_yaml(theirs)
    assert result["protocol"]["hash"] in entries[0]["notes"] and "seed 1" in entries[0]["notes"]


TOLD = {"a": ["a man came"], "b": ["the lamp went out"], "c": ["no difference"], "d": ["nothing has changed"]}
CLAIMED = {
    "always": {**{id: texts[0] for id, texts in TOLD.items()}, "c": "a dog left", "d": "a dog left"},
    "bad": {"a": "x y", "b": "z z", "c": "a dog left", "d": "a dog left"},
    "careful": {**{id: texts[0] for id, texts in TOLD.items()}, "c": "No change.", "d": "a dog left"},
}


def score_told(folder: Path, *more: str) -> None:
    """Score three captioners: one that always reports a change, a bad one, and a careful one."""
    (folder / "results").mkdir(parents=True, exist_ok=True)
    (folder / "told.json").write_text(json.dumps(TOLD), encoding="utf-8")
    for name, captions in CLAIMED.items():
        (folder / "said.json").write_text(json.dumps(captions), encoding="utf-8")
        asked = [
            "score",
            str(folder / "said.json"),
            "--references",
            str(folder / "told.json"),
            "--model_name",
            name,
            *more,
        ]
        assert main([*asked, "--out", str(folder / "results" / f"{name}.json")]) == 0


def test_lists_of_differences_are_ranked_by_f1_and_specificity(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    score_told(tmp_path, "--protocol", "difference-list")
    capsys.readouterr()
    assert main(["leaderboard", str(tmp_path / "results")]) == 0
    printed = capsys.readouterr().out
    head, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in printed.splitlines() if line.startswith("|")
    ]
    assert head[:5] == ["model", "recall", "precision", "F1", "specificity"]
    assert [row[:5] for row in rows] == [
        ["careful", "100.0", "100.0", "100.0", "50.0"],
        ["always", "100.0", "100.0", "100.0", "0.0"],
        ["bad", "0.0", "0.0", "0.0", "0.0"],
    ]
    assert "2 pairs, 2 references; unchanged: 2 pairs; protocol" in printed
    assert "ranked by F1, specificity" in printed


def test_a_result_of_an_unknown_protocol_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    score_told(tmp_path, "--protocol", "difference-list")
    path = tmp_path / "results" / "bad.json"
    result = json.loads(path.read_text(encoding="utf-8"))
    result["protocol"]["name"] = "differences"
    save_json(path, result, overwrite=True)
    assert main(["leaderboard", str(tmp_path / "results")]) == 1
    assert "bad.json is scored under 'differences'" in capsys.readouterr().err


def test_entries_of_the_hub_are_of_every_part(tmp_path: Path) -> None:
    score_told(tmp_path, "--protocol", "difference-list", "--split", "test")
    result = json.loads((tmp_path / "results" / "always.json").read_text(encoding="utf-8"))
    entries = hub_entries(result, "people/pairs")
    names = [f"difference_list_{name}" for name in ("recall", "precision", "f1", "specificity")]
    values = {entry["dataset"]["task_id"]: entry["value"] for entry in entries}
    assert values == dict(zip(names, [100, 100, 100, 0], strict=True))
    assert "2 pairs (unchanged)" in entries[-1]["notes"] and "(" not in entries[0]["notes"]


def test_a_metric_of_several_parts_is_named_by_the_part_on_the_hub(tmp_path: Path) -> None:
    truths = {
        f"{n:06d}.png{kind}": [f"cube {n} moved" if not kind else "no change"] for n in (1, 2) for kind in ("", "_n")
    }
    (tmp_path / "told.json").write_text(json.dumps(truths), encoding="utf-8")
    (tmp_path / "said.json").write_text(json.dumps({id: texts[0] for id, texts in truths.items()}), encoding="utf-8")
    asked = ["--protocol", "clevr-change/total", "--metrics", "ROUGE-L", "--split", "test"]
    (tmp_path / "results").mkdir()
    out = ["--out", str(tmp_path / "results" / "r.json")]
    assert main(["score", str(tmp_path / "said.json"), "--references", str(tmp_path / "told.json"), *asked, *out]) == 0
    result = json.loads((tmp_path / "results" / "r.json").read_text(encoding="utf-8"))
    tasks = {entry["dataset"]["task_id"]: entry["notes"] for entry in hub_entries(result, "people/pairs")}
    assert list(tasks) == [f"clevr_change_total_{part}rouge_l" for part in ("", "change_", "no_change_")]
    assert "4 pairs," in tasks["clevr_change_total_rouge_l"]
    assert "2 pairs (no change)," in tasks["clevr_change_total_no_change_rouge_l"]


def score_moved(folder: Path, name: str, references: Mapping[str, list[str]], *more: str) -> None:
    (folder / "results").mkdir(parents=True, exist_ok=True)
    (folder / "told.json").write_text(json.dumps(references), encoding="utf-8")
    (folder / "said.json").write_text(json.dumps({id: texts[0] for id, texts in references.items()}), encoding="utf-8")
    asked = ["--references", str(folder / "told.json"), "--metrics", "ROUGE-L", *more]
    assert main(["score", str(folder / "said.json"), *asked, "--out", str(folder / "results" / f"{name}.json")]) == 0


def test_results_of_some_data_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    score_moved(tmp_path, "levir", {"a": ["a house was built"], "b": ["a road appeared"]}, "--split", "test")
    score_moved(tmp_path, "spot", {"x": ["a man left"], "y": ["a car came"]}, "--split", "val")
    result = json.loads((tmp_path / "results" / "levir.json").read_text(encoding="utf-8"))
    capsys.readouterr()
    assert main(["leaderboard", str(tmp_path / "results"), "--data", result["data"]["fingerprint"]]) == 0
    printed = capsys.readouterr().out
    assert "levir.json" in printed and "spot.json" not in printed
    assert main(["leaderboard", str(tmp_path / "results"), "--data", "0123"]) == 1
    assert "no result has the data fingerprint 0123" in capsys.readouterr().err


def test_text_of_a_result_is_escaped_in_markdown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of, runs = truths(), tmp_path / "runs"
    for name in ("a", "<b>b"):
        write_run(runs / name, 1, said(of, 0.2, 1), of, {"model.width": len(name)})
        path = runs / name / "test" / "metrics.json"
        value = json.loads(path.read_text())
        value["protocol"]["hash"] = "0\x1b[2J\n# <img src=x>"
        save_json(path, value)
    assert main(["leaderboard", str(runs), "--samples", "0"]) == 0
    board = capsys.readouterr().out
    assert "\x1b" not in board and "<" not in board and "\n# " not in board.removeprefix("# Leaderboard")
    assert "the same captions: " in board
