"""Parsing and judging captions. Oracle: sentences written by hand, and scenes made by hand."""

from __future__ import annotations

import string

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_idc.data.synthetic.cache import Key, draw_pair
from lightning_idc.data.synthetic.claims import Attributes, ParsedChange, claim_of
from lightning_idc.data.synthetic.facts import change_accuracy, report_accuracy
from lightning_idc.data.synthetic.grammar import parse, parse_report
from lightning_idc.data.synthetic.modes import clevr_change, omnidiff
from lightning_idc.data.synthetic.scene import COLORS, MATERIALS, SHAPES, SIZES
from lightning_idc.data.synthetic.truth import measure

WORDS = [
    *SHAPES,
    *COLORS,
    *MATERIALS,
    *SIZES,
    "the",
    "that",
    "is",
    "of",
    "left",
    "front",
    "changed",
    "to",
    "letter",
    "number",
    ".",
]


@given(st.one_of(st.text(), st.text(string.printable), st.lists(st.sampled_from(WORDS)).map(" ".join)))
def test_any_string_can_be_parsed(text: str) -> None:
    assert isinstance(parse(text), ParsedChange)
    assert all(isinstance(claim, ParsedChange) for claim in parse_report(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ParsedChange()),
        ("the cube", ParsedChange(None, Attributes(shape="cube"))),
        (
            "The tiny shiny ball turned Red.",
            ParsedChange("color", Attributes("small", None, "metal", "sphere"), value="red"),
        ),
        ("the big matte block is missing", ParsedChange("drop", Attributes("large", None, "rubber", "cube"))),
        (
            "the small cyan cube behind the large purple cube changed to blue",
            ParsedChange(
                "color",
                Attributes("small", "cyan", None, "cube"),
                "behind",
                Attributes("large", "purple", None, "cube"),
                value="blue",
            ),
        ),
        (
            "the red cylinder to the left of the sphere has been newly placed",
            ParsedChange("add", Attributes(color="red", shape="cylinder"), "left", Attributes(shape="sphere")),
        ),
        ("there is no change", ParsedChange("no_change")),
        ("the two scenes seem identical", ParsedChange("no_change")),
        ("no change was made", ParsedChange("no_change")),
        ("the gray sphere is no longer there", ParsedChange("drop", Attributes(color="gray", shape="sphere"))),
        ("the gray sphere changed its location", ParsedChange("move", Attributes(color="gray", shape="sphere"))),
    ],
)
def test_sentences_of_other_templates_are_parsed(text: str, expected: ParsedChange) -> None:
    assert parse(text) == expected


def test_british_spelling_is_equivalent() -> None:
    for sentence in ("the small gray metal cube changed its color to gray", "the large gray sphere is missing"):
        assert parse(sentence.replace("gray", "grey").replace("color", "colour")) == parse(sentence)
    report = "The color of the gray cube in the center of the scene changed to gray. A gray ball appeared."
    spelt = report.replace("gray", "grey").replace("color", "colour").replace("center", "centre")
    assert parse_report(spelt) == parse_report(report) and parse_report(report)[0].value == "gray"


def truth_of(mode_module, name: str, kind: str, seed: int = 0):
    """Return the first pair of a kind and its ground truth; nothing is rendered, so boxes are empty."""
    key = Key(name, "train", 1000, 64, 64, seed, mode_module.WORLD)
    for index in range(1000):
        pair = draw_pair(key, index)
        if pair.change_type == kind:
            seen = np.full((2, 64, 64), -1, np.int8)
            return pair, {"mode": name, **measure(pair, seen)}
    raise AssertionError(f"no pair of the kind {kind}")


@pytest.mark.parametrize("kind", clevr_change.KINDS)
def test_references_are_judged_correct(kind: str) -> None:
    pair, truth = truth_of(clevr_change, "clevr_change", kind)
    for caption in pair.captions:
        verdict = change_accuracy(caption, truth)
        assert verdict["type_correct"] is True
        assert verdict["value_correct"] is (True if kind in ("color", "texture") else None)
        assert verdict["attributes_correct"] is verdict["relation_correct"] is (None if kind == "no_change" else True)


def test_each_error_is_detected() -> None:
    _, truth = truth_of(clevr_change, "clevr_change", "color")
    claim = claim_of(truth["changes"][0])
    thing, anchor = claim.thing.phrase(), claim.anchor.phrase()
    phrase = {"left": "left of", "right": "right of", "front": "in front of", "behind": "behind"}
    opposite = {"left": "right", "right": "left", "front": "behind", "behind": "front"}

    def judge(text: str) -> tuple:
        return tuple(change_accuracy(text, truth).values())  # type, attributes, value, relation

    right = f"the {thing} that is {phrase[claim.relation]} the {anchor} changed to {claim.value}"
    assert judge(right) == (True, True, True, True)
    assert judge(right.replace(phrase[claim.relation], phrase[opposite[claim.relation]])) == (True, True, True, False)
    assert judge(f"the {thing} changed to {claim.value}") == (True, True, True, False)
    assert judge(f"the {thing} that is {phrase[claim.relation]} the {anchor} disappeared") == (False, True, False, True)
    wrong = "cube" if claim.thing.shape != "cube" else "sphere"
    other = claim.thing._replace(shape=wrong).phrase()
    assert judge(f"the {other} that is {phrase[claim.relation]} the {anchor} changed to {claim.value}")[1] is False
    assert judge("nothing changed") == (False, False, False, False)
    assert judge("") == (False, False, False, False)


def test_other_true_relation_is_correct() -> None:
    _, truth = truth_of(clevr_change, "clevr_change", "drop")
    change = truth["changes"][0]
    claim = claim_of(change)
    things = truth["before"]["things"]
    verdicts = []
    for index, other in enumerate(things):
        named = Attributes(*(other[name] for name in Attributes._fields))
        if index != change["before"][0] and named != claim.anchor:
            for words in ("left of", "right of", "in front of", "behind"):
                caption = f"the {claim.thing.phrase()} that is {words} the {named.phrase()} disappeared"
                verdicts.append(change_accuracy(caption, truth)["relation_correct"])
    # at most one of left and right, and at most one of front and behind, is true
    assert 0 < sum(verdicts) <= len(verdicts) / 2


def test_report_is_judged_by_change() -> None:
    pair, truth = truth_of(omnidiff, "omnidiff", "color")
    (caption,) = pair.captions
    assert report_accuracy(caption, truth) == {"type_recall": 1.0, "type_precision": 1.0, "fact_recall": 1.0}
    shorter = caption.split(". ")[0]
    assert report_accuracy(shorter, truth)["type_recall"] == pytest.approx(1 / len(pair.changes))
    assert report_accuracy("", truth) == {"type_recall": 0.0, "type_precision": 0.0, "fact_recall": 0.0}
