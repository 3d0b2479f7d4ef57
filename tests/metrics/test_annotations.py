"""Scores of real references equal pycocoevalcap, including its Java tokenizer, as in benchmarks/studies."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks.studies.annotations import compare, variants


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("java") is None, reason="needs Java")
@pytest.mark.parametrize("file", ["spot_the_diff/val.json", "levir_cc/levir_cc_captions.json.gz"])
def test_scores_equal_pycocoevalcap_end_to_end(shared: Path, file: str) -> None:
    result = compare(shared / "realdata" / "annotations" / file, 200, None)
    assert result is not None and result["pairs"] == 200
    for variant in ("themselves", "shuffled", "truncated"):
        assert max(result[variant].values()) < 1e-6, variant


def test_variants_match_their_names() -> None:
    result = variants({"a": ["one two three"], "b": ["four"], "c": ["five six"]})
    assert result["themselves"] == {"a": "one two three", "b": "four", "c": "five six"}
    assert sorted(result["shuffled"].values()) == sorted(result["themselves"].values())
    assert result["truncated"] == {"a": "one two", "b": "four", "c": "five"}
