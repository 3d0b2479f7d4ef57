"""The rule-based describer as a row of a results table."""

from __future__ import annotations

import torch

from lightning_idc.images.types import PairSample
from lightning_idc.metrics.captions import score_captions
from lightning_idc.report.comparison import Captioned, compare_captioners
from lightning_idc.rules import rules_captions


def pairs() -> list[PairSample]:
    ground = torch.full((3, 96, 96), 190, dtype=torch.uint8)
    disc = ground.clone()
    disc[:, 10:30, 60:84] = torch.tensor([220, 20, 20], dtype=torch.uint8)[:, None, None]
    return [
        PairSample("added", ground, disc, ["a red object was added in the upper right"]),
        PairSample("removed", disc, ground, ["the red object was removed"]),
        PairSample("same", disc, disc, ["nothing changed"]),
    ]


def test_captions_of_samples() -> None:
    assert rules_captions(pairs()) == {
        "added": "A red object was added in the upper right.",
        "removed": "A red object was removed from the upper right.",
        "same": "Nothing changed.",
    }


def test_report_row_of_the_rules() -> None:
    references = {pair.id: pair.captions for pair in pairs()}
    captions = rules_captions(pairs())
    assert score_captions(captions, references, ("CIDEr-D",)).values["CIDEr-D"] > 200
    others = Captioned(dict.fromkeys(references, "a cube moved"))
    rows = compare_captioners({"rules": Captioned(captions), "captioner": others}, references)
    assert [row.name for row in rows] == ["rules", "captioner"] and rows[0].score > rows[1].score
