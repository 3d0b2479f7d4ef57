"""CaptionScores over two gloo processes against one call of score_captions on all captions."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.processes import launch

from lightning_idc.metrics.captions import score_captions
from lightning_idc.metrics.metric import CaptionScores
from lightning_idc.utils.errors import ConfigError, DataError

HERE = Path(__file__).parent
RECORDS = [
    {"id": "a", "caption": "the red cube moved", "references": ["the red cube has moved", "a cube moved"]},
    {"id": "b", "caption": "nothing\u2028changed\r", "references": ["nothing changed", "no change was made"]},
    {"id": "c", "caption": "", "references": ["the ball is gone"]},
    {"id": "d", "caption": "a café (new) appeared ½", "references": ["a new café appeared"]},
]


def scores_of(records: list[dict]) -> dict[str, float]:
    captions = {r["id"]: r["caption"] for r in records}
    return score_captions(captions, {r["id"]: r["references"] for r in records}).as_dict()


@pytest.mark.dist
def test_two_processes_see_every_pair_once(tmp_path: Path) -> None:
    (tmp_path / "records.json").write_text(json.dumps(RECORDS), encoding="utf-8")
    launch(HERE / "two_ranks.py", tmp_path, processes=2)
    ids, captions = [r["id"] for r in RECORDS], [r["caption"] for r in RECORDS]
    for rank in range(2):
        results = json.loads((tmp_path / f"results{rank}.json").read_text(encoding="utf-8"))
        shared, lopsided, empty, tensors, again, scored_here = results
        assert shared == lopsided == [ids, captions, scores_of(RECORDS)]
        assert empty == [[], [], None]
        expected = scores_of(RECORDS)
        names = {"BLEU": "BLEU-4", "CIDErD": "CIDEr-D", "ROUGEL": "ROUGE-L"}
        assert tensors == again == pytest.approx({name: expected[key] for name, key in names.items()}, rel=1e-6)
        assert scored_here == (rank == 0), "only the first process scores"


def test_pickles_and_copies_with_its_captions() -> None:
    metric = CaptionScores()
    metric.update(RECORDS[:2])
    metric.compute()
    metric.update(RECORDS[2:])
    for twin in (pickle.loads(pickle.dumps(metric)), copy.deepcopy(metric)):
        _, scores = twin.compute()
        assert scores is not None and scores.as_dict() == scores_of(RECORDS)


def test_prepared_references_follow_the_references() -> None:
    metric = CaptionScores()
    for records in (RECORDS, RECORDS[:2], [{**RECORDS[0], "references": ["something else"]}, RECORDS[1]]):
        metric.update(records)
        _, scores = metric.compute()
        assert scores is not None and scores.as_dict() == scores_of(records)
        metric.reset()


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (RECORDS[0], "expected a list of records"),
        (["a"], "record 1 is 'a'; expected a dict with id, caption, references"),
        ([RECORDS[0], {"id": "e", "caption": "x"}], "record 2 has no references; it has id, caption"),
        ([{**RECORDS[0], "id": None}], "record 1: id is None; expected text or a whole number"),
        ([{**RECORDS[0], "score": torch.tensor(1.0)}], "record 1 cannot be stored as JSON .*plain values"),
    ],
)
def test_rejects_malformed_records(records: Any, message: str) -> None:
    metric = CaptionScores()
    with pytest.raises(DataError, match=message):
        metric.update(records)
    assert metric.compute() == ([], None), "nothing of them was kept"


def test_rejects_unknown_metrics() -> None:
    with pytest.raises(ConfigError, match="unknown metrics: BLEU-4; expected BLEU"):
        CaptionScores(["BLEU-4"])


def test_ids_may_be_numbers_and_the_type_of_a_collection_may_be_set() -> None:
    metric = CaptionScores(["ROUGE-L"])
    metric.update([{**RECORDS[0], "id": id} for id in (10, "a", 9)])
    metric.set_dtype(torch.float64)
    records, scores = metric.compute()
    assert [record["id"] for record in records] == [9, 10, "a"] and scores is not None and scores.pairs == 3
