"""The protocol diffspot. Oracles: hits counted by hand on six pairs, and captions of the generator."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightning_idc.cli import main
from lightning_idc.metrics.baselines import baseline_scores
from lightning_idc.metrics.captions import ScoringResources
from lightning_idc.metrics.change_facts import ChangeFacts
from lightning_idc.metrics.diffspot import PromptedVerdict, read_verdict
from lightning_idc.metrics.grouping import ReferenceRecord
from lightning_idc.metrics.page_claims import claimed_operator
from lightning_idc.metrics.protocols import evaluate, protocol_named
from lightning_idc.metrics.reading import read_predictions, read_references
from lightning_idc.synthesis.web.operators import OPERATORS, Mutation, caption_of
from lightning_idc.utils.boxes import box_iou
from lightning_idc.utils.errors import ConfigError, DataError

BOX = [100, 100, 200, 140]


def record(id: str, operator: str, tier: str = "easy", **facts: Any) -> dict[str, Any]:
    change = {"operator": operator, "tier": tier, "boxes": [BOX, None], "text": "Read more about it", **facts}
    return {"id": id, "references": [f"{operator} changed"], "change_type": operator, "change": change}


RECORDS = [
    record("color", "color"),
    record("weight", "weight", "hard"),
    record("moved", "translate"),
    record("pushed", "translate", "hard", reflows=True),
    {"id": "same", "references": ["nothing changed"], "change_type": "no_change"},
    {"id": "reload", "references": [], "change_type": "no_change"},
]
CAPTIONS = [
    {"id": "color", "caption": "The link has another color.", "boxes": [[105, 100, 195, 140]]},
    {"id": "weight", "caption": "The link is bold now.", "boxes": [[300, 300, 400, 320]]},
    {"id": "moved", "caption": "The link has another inner spacing.", "boxes": [[100, 100, 200, 140]]},
    {"id": "pushed", "caption": 'A new image. The link "Read more..." moved down.', "boxes": []},
    {"id": "same", "caption": "There is no difference."},
    {"id": "reload", "caption": "A button was removed."},
]


def files(folder: Path, captions: Sequence[dict[str, Any]] = CAPTIONS) -> tuple[Path, Path]:
    for name, rows in (("captions", captions), ("pairs", RECORDS)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "captions.jsonl", folder / "pairs.jsonl"


def test_score_counts_as_the_leaderboard_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    captions, pairs = files(tmp_path)
    arguments = ["score", str(captions), "--references", str(pairs), "--protocol", "diffspot"]
    assert main([*arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    scores = result["scores"]
    # lenient hits: color, moved (spacing looks the same), pushed (by the quoted text); the box of "weight" is elsewhere
    assert scores["changed"] == {"recall": 75, "recall (strict)": 50, "recall (strict, IoU)": 25}
    assert scores["unchanged"] == {"specificity": 50}
    rounded = {name: round(value, 3) for name, value in scores["all"].items()}
    assert rounded == {"overall": 66.667, "overall (strict)": 50, "overall (strict, IoU)": 33.333}
    assert scores["easy"]["recall"] == 100 and scores["hard"]["recall"] == 50
    assert scores["translate"] == {"recall": 100, "recall (strict)": 50, "recall (strict, IoU)": 0}
    assert result["judge"] == {"judge": "exact facts"} and result["headline"] == "all"
    # a constant "no difference" scores the fraction of unchanged pairs
    assert result["baselines"]["claims nothing"]["all"]["overall"] == pytest.approx(100 / 3, abs=1e-5)
    assert set(result["baselines"]) == {"claims nothing", "captions of other pairs", "constant claim"}
    assert main(arguments) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "baseline, claims nothing: overall 33.3" in printed and "exact facts" in printed


@pytest.mark.parametrize("name", OPERATORS)
def test_captions_of_the_generator_name_their_operator(name: str) -> None:
    mutation = {
        "translate": Mutation("top", "0px", "5px"),
        "text": Mutation("text", "Bold border color", "Bold moved color"),
    }.get(name, Mutation(name, "1px", "2px"))
    # the text of the element must not be read as a claim
    caption = caption_of(name, {"tag": "a", "text": "Removed borders; bold. It moved"}, mutation)
    assert claimed_operator(caption) == name
    facts = ChangeFacts(name, "easy", ((0, 0, 10, 10),), "Removed borders; bold. It moved")
    truth = ReferenceRecord("a", (caption,), name, change=facts)
    scores = evaluate(protocol_named("diffspot"), {"a": caption}, [truth])["changed"]
    assert scores.values["recall (strict)"] == 100


def test_what_cannot_be_told_apart_in_a_picture_counts_as_seen() -> None:
    assert ChangeFacts("spacing").visible_operators == {"spacing", "translate", "alignment"}
    assert ChangeFacts("spacing", reflows=True).visible_operators == {"spacing"}
    assert ChangeFacts("opacity", new="0.5").visible_operators == {"opacity", "color"}
    assert ChangeFacts("opacity", new="0").visible_operators == {"opacity", "color", "remove"}
    assert ChangeFacts("color").visible_operators == {"color"}


def test_iou_equals_a_count_of_pixels() -> None:
    first, second = (2, 3, 12, 9), (5, 1, 15, 8)
    masks = np.zeros((2, 20, 20), bool)
    for mask, (left, top, right, bottom) in zip(masks, (first, second), strict=True):
        mask[top:bottom, left:right] = True
    assert box_iou(first, second) == pytest.approx((masks[0] & masks[1]).sum() / (masks[0] | masks[1]).sum())
    assert box_iou((0, 0, 1, 1), (2, 2, 3, 3)) == 0


def test_the_judged_form_needs_no_facts(tmp_path: Path) -> None:
    prompts: list[str] = []

    def model(texts: Sequence[str], attempt: int) -> list[str]:
        prompts.extend(texts)
        return ["Correct." if "another color" in text else "maybe" if "bold" in text else "missed" for text in texts]

    captions, pairs = files(tmp_path)
    records = [ReferenceRecord(r.id, r.references, r.change_type) for r in read_references(pairs)]
    predictions = read_predictions(captions)
    resources = ScoringResources(judge=PromptedVerdict(model, retries=1))
    parts = evaluate(protocol_named("diffspot"), predictions.captions, records, None, resources)
    # the unreadable answer about "weight" is excluded and reported
    assert parts["changed"].values == {"recall": pytest.approx(100 / 3)} and parts["changed"].pairs == 3
    assert parts["changed"].missing == {"unread": "1 of 4 answers of the judge could not be read"}
    assert parts["unchanged"].values == {"specificity": 50} and parts["all"].values == {"overall": 40}
    assert "color changed" in prompts[0] and "The link has another color" in prompts[0]
    scores, _ = baseline_scores(protocol_named("diffspot"), predictions.captions, records, resources)
    assert list(scores) == ["claims nothing", "captions of other pairs"]
    with pytest.raises(ConfigError, match="pair 'color' has no facts of its change; expected references with"):
        evaluate(protocol_named("diffspot"), predictions.captions, records)


def test_verdicts_are_read_strictly() -> None:
    answers = ("correct", "**Partial**", "missed, I think", "incorrect", "correct? no, missed", "")
    assert [read_verdict(answer) for answer in answers] == [True, False, False, None, None, None]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tier": "easy"}, "expected an object with an operator"),
        ({"operator": "color", "boxes": [[1, 2, 3]]}, r"boxes of change: \[1, 2, 3\]; expected x1 y1 x2 y2"),
        ({"operator": "color", "text": 3}, "expected texts"),
    ],
)
def test_malformed_facts_are_named(tmp_path: Path, change: Any, message: str) -> None:
    (tmp_path / "pairs.jsonl").write_text(json.dumps({"id": "a", "references": ["x"], "change": change}) + "\n")
    with pytest.raises(DataError, match=message):
        read_references(tmp_path / "pairs.jsonl")
