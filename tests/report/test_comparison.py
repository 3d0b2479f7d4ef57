"""Comparisons of captioners. Oracle: captioners known to use the images, and known not to."""

from __future__ import annotations

import itertools
import json

import pytest

from lightning_idc.metrics.bootstrap import compare
from lightning_idc.metrics.captions import score_captions
from lightning_idc.report.comparison import (
    Captioned,
    compare_captioners,
    differences_table,
    facts_over,
    facts_table,
    interval,
)
from lightning_idc.utils.errors import DataError

COLORS, SHAPES = ("red", "blue", "gray", "green"), ("cube", "sphere", "cylinder")
THINGS = [f"{color} {shape}" for color, shape in itertools.product(COLORS, SHAPES)] * 3
REFERENCES = {f"{n:02d}": [f"the {thing} has moved", f"the {thing} is elsewhere"] for n, thing in enumerate(THINGS)}
SEES = {id: texts[0] for id, texts in REFERENCES.items()}
HALF = {id: text if int(id) % 2 else "the red cube has moved" for id, text in SEES.items()}
CONSTANT = "the red cube has moved"


def test_rows_have_baselines_and_intervals() -> None:
    blind = dict.fromkeys(SEES, CONSTANT)
    said = {
        "blind": Captioned(blind, blind),
        "half": Captioned(HALF, blind),
        "sees": Captioned(SEES, blind),
        "as well": Captioned(SEES, blind),
    }
    rows = compare_captioners(said, REFERENCES, CONSTANT)
    assert [row.verdict for row in rows] == ["below the baseline", "higher", "higher", "not decided"]
    assert [row.previous for row in rows] == [None, "blind", "half", "sees"]
    scores = [score_captions(one.captions, REFERENCES, ("CIDEr-D",)) for one in said.values()]
    for row, own in zip(rows, scores, strict=True):
        assert row.score == own.values["CIDEr-D"]
        assert set(row.baselines) == {"constant caption", "shuffled captions", "identical images"}
        assert row.baselines["constant caption"] == row.baselines["identical images"] == scores[0].values["CIDEr-D"]
    assert rows[2].over_previous["CIDEr-D"] == compare(scores[1], scores[2])["CIDEr-D"]
    assert (rows[2].distinct, rows[0].distinct, rows[0].words) == (len(set(THINGS)), 1, 5.0)
    table = differences_table(rows)
    assert interval(rows[2].over_previous["CIDEr-D"]) in table and "below the baseline" in table
    assert json.loads(json.dumps([row.as_dict() for row in rows]))[1]["verdict"] == "higher"


def test_a_captioner_that_hallucinates_as_well_without_a_change_is_below_the_floor() -> None:
    (row,) = compare_captioners({"x": Captioned(HALF, HALF)}, REFERENCES, "words of nobody")
    assert row.baselines["identical images"] == row.score and row.verdict == "below the baseline"
    (row,) = compare_captioners({"x": Captioned(HALF)}, REFERENCES)
    assert list(row.baselines) == ["shuffled captions"] and row.verdict == ""


def test_pairs_without_references_do_not_count_and_missing_captions_are_an_error() -> None:
    more = {**REFERENCES, "silent": []}
    (with_more,) = compare_captioners({"x": Captioned({**SEES, "silent": "words"})}, more)
    (without,) = compare_captioners({"x": Captioned(SEES)}, REFERENCES)
    assert with_more.as_dict() == without.as_dict()
    with pytest.raises(DataError, match="35"):
        compare_captioners({"x": Captioned({id: text for id, text in SEES.items() if id != "35"})}, REFERENCES)


def test_facts_are_compared_where_they_apply() -> None:
    first = {str(n): {"type": n % 4 == 0, "value": None if n % 2 else False} for n in range(40)}
    second = {str(n): {"type": n % 2 == 0, "value": None if n % 2 else True} for n in range(40)}
    result = facts_over(first, second)
    assert result["type"].difference == pytest.approx(25) and 0 < result["type"].low < 25 < result["type"].high < 50
    assert (result["value"].difference, result["value"].wins, result["value"].losses) == (100, 20, 0)
    assert facts_over(first, {id: {"type": True, "value": True} for id in second}).keys() == {"type"}, "other pairs"
    ids = list(REFERENCES)
    facts = [
        {id: {"type": n % 2 < right, "value": True if n % right else None} for n, id in enumerate(ids)}
        for right in (1, 2)
    ]
    table = facts_table(
        compare_captioners({str(k): Captioned(SEES, facts=known) for k, known in enumerate(facts)}, REFERENCES)
    )
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    assert lines[0] == ["facts right, %", "type", "value"]
    assert lines[2] == ["0", "50.0", "-"], "no pair has a value"
    assert lines[3][1].startswith("100.0 +50.0 [") and lines[3][2] == "100.0"
