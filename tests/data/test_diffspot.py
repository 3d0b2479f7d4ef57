"""DiffSpot: its unchanged pairs have no reference. Oracle: tables in the layout of its release."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from helpers.tiny import TinyCaptioner
from helpers.training import QUIET, fit
from lightning.pytorch import Trainer
from PIL import Image

from lightning_idc.callbacks.show_results import ShowResults
from lightning_idc.cli import main
from lightning_idc.data import DiffSpot
from lightning_idc.data.benchmarks.diffspot import Difficulty
from lightning_idc.utils.errors import IDCError


def png(value: int) -> dict[str, Any]:
    stream = io.BytesIO()
    Image.fromarray(np.full((6, 8, 3), value, np.uint8)).save(stream, "PNG")
    return {"bytes": stream.getvalue(), "path": None}


def diffspot(root: Path, **change: Any) -> None:
    rows: dict[str, list[Any]] = {
        "id": ["a", "b", "c"],
        "task_type": ["has_diff", "has_diff", "no_diff"],
        "difficulty": ["easy", "hard", "unknown"],
        "domain": ["news", "shop", "news"],
        "ground_truth_diff": ["the title is red", "two things changed", None],
        "mutation_dicts_json": [
            [json.dumps({"type": "color", "before_value": "#000"})],
            [json.dumps({"type": "text"}), json.dumps({"type": "border"})],
            [],
        ],
        "image_before": [png(1), png(2), png(3)],
        "image_after": [png(11), png(12), png(3)],
        **change,
    }
    features = datasets.Features(
        {
            **{
                name: datasets.Value("string")
                for name in ("id", "task_type", "difficulty", "domain", "ground_truth_diff")
            },
            "mutation_dicts_json": datasets.Sequence(datasets.Value("string")),
            "image_before": datasets.Image(),
            "image_after": datasets.Image(),
        }
    )
    (root / "data").mkdir(parents=True)
    datasets.Dataset.from_dict(rows, features=features).to_parquet(str(root / "data/test-00000.parquet"))


def test_diffspot_has_unchanged_pairs_and_mutations(tmp_path: Path) -> None:
    diffspot(tmp_path / "d")
    pairs = DiffSpot(tmp_path / "d").dataset("test")
    assert [pair.id for pair in pairs] == ["a", "b", "c"]
    assert [pair.change_type for pair in pairs] == ["color", "mixed", "no_change"]
    assert [pair.captions for pair in pairs] == [["the title is red"], ["two things changed"], []]
    assert (pairs[0].before == 1).all() and (pairs[0].after == 11).all()
    assert pairs[0].meta == {
        "difficulty": "easy",
        "domain": "news",
        "mutations": [{"type": "color", "before_value": "#000"}],
    }
    assert list(DiffSpot(tmp_path / "d", difficulty="no_diff").pairs_of("test").ids) == ["c"]
    with pytest.raises(IDCError, match="test pairs only"):
        DiffSpot(tmp_path / "d").pairs_of("train")
    with pytest.raises(IDCError, match=r"download the parquet files.*tencent/DiffSpot"):
        DiffSpot(tmp_path / "absent").pairs_of("test")


def test_mutation_that_is_not_json_is_an_error(tmp_path: Path) -> None:
    diffspot(tmp_path / "d", mutation_dicts_json=[["{"], [], []])
    with pytest.raises(IDCError, match=r"row 0: mutation_dicts_json is"):
        DiffSpot(tmp_path / "d").pairs_of("test")


def test_change_without_mutations_has_type_change(tmp_path: Path) -> None:
    diffspot(tmp_path / "d", mutation_dicts_json=[[], [json.dumps({"type": "text"})], []])
    assert [pair.change_type for pair in DiffSpot(tmp_path / "d").dataset("test")] == ["change", "text", "no_change"]


def test_a_correct_release_has_no_problems(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A release has only test pairs, and its unchanged pairs have no caption."""
    diffspot(tmp_path / "d")
    assert main(["data", "check", "diffspot", "--root", str(tmp_path / "d")]) == 0
    assert capsys.readouterr().out.splitlines() == ["test: 3 pairs, 2 captions, images of 6x8", "no problems"]
    assert main(["data", "count", "diffspot", "--root", str(tmp_path / "d")]) == 0
    counted = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert counted[0] == ["test"] and counted[1] == ["pairs", "3"] and counted[2] == ["captions", "2"]


def test_a_changed_pair_without_a_caption_is_a_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    diffspot(tmp_path / "d", ground_truth_diff=["the title is red", None, None])
    assert main(["data", "check", "diffspot", "--root", str(tmp_path / "d")]) == 1
    assert "test: 1 of 3 pairs have no caption: b" in capsys.readouterr().out


def result_of(folder: Path, root: Path, difficulty: Difficulty = "all") -> dict[str, Any]:
    """Return the metrics that ShowResults writes for an untrained captioner under the protocol difference-list."""
    shown = ShowResults(examples=0, report_pairs=0, protocol="difference-list")
    model = fit([], folder, TinyCaptioner(), max_steps=1)
    trainer = Trainer(callbacks=[shown], default_root_dir=folder, **QUIET)
    trainer.test(model, DiffSpot(root, difficulty, image_size=8), verbose=False)
    result: dict[str, Any] = json.loads((folder / "metrics.json").read_text())
    return result


@pytest.mark.slow
def test_difference_list_counts_unchanged_pairs_like_score(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    diffspot(tmp_path / "d")
    result = result_of(tmp_path, tmp_path / "d")
    assert {name: part["pairs"] for name, part in result["counts"].items()} == {"changed": 2, "unchanged": 1}
    assert result["predictions"]["count"] == 3
    capsys.readouterr()
    arguments = ["score", str(tmp_path / "predictions.jsonl"), "--protocol", "difference-list"]
    assert main([*arguments, "--json"]) == 0
    scored = json.loads(capsys.readouterr().out)
    for name in ("scores", "counts", "protocol", "judge", "baselines", "predictions", "change_no_change"):
        assert result[name] == scored[name], name
    assert result["data"]["fingerprint"] == scored["data"]["fingerprint"]
    assert result["protocol"]["inputs"] == {"judge": result["judge"]["judge"]}
    assert list(result["baselines"]) == ["claims nothing", "captions of other pairs"]
    assert main(arguments) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "1 records have only empty references; they count as unchanged" in printed
    assert "score 0" not in printed


def test_unchanged_pairs_only_can_be_scored(tmp_path: Path) -> None:
    diffspot(tmp_path / "d")
    result = result_of(tmp_path, tmp_path / "d", "no_diff")
    assert list(result["scores"]) == ["unchanged"] and result["counts"]["unchanged"]["pairs"] == 1
