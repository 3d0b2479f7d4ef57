"""Floors and readings. Oracle: trying every caption, and hand-made intervals."""

from __future__ import annotations

import itertools

import pytest

from lightning_idc.metrics.bootstrap import Difference
from lightning_idc.metrics.captions import score_captions
from lightning_idc.metrics.floors import constant_caption, dealt, reading
from lightning_idc.utils.errors import DataError

SIZES, COLORS, SHAPES = ("small", "large"), ("red", "blue", "gray"), ("cube", "sphere")
TRAIN = [
    [f"the {size} {color} {shape} moved", f"the {color} {shape} is elsewhere"]
    for size, color, shape in itertools.product(SIZES, COLORS, SHAPES)
    if (size, color) != ("small", "gray")
] + [["nothing at all"]] * 2


def test_the_constant_caption_is_the_best_one_and_not_the_commonest() -> None:
    references = {str(place): texts for place, texts in enumerate(TRAIN)}

    def score(text: str) -> float:
        return score_captions(dict.fromkeys(references, text), references, ("CIDEr-D",)).values["CIDEr-D"]

    every = {text: score(text) for texts in TRAIN for text in texts}
    assert score(constant_caption(TRAIN)) == max(every.values())
    assert constant_caption(TRAIN) == constant_caption(TRAIN), "the same one every time"
    many = [[f"caption {number} of a large corpus"] for number in range(2000)]
    assert constant_caption([*many, *([["the same again"]] * 1500)]) == "the same again"
    assert constant_caption([[], ["a b"], ["a b"], ["c"]]) == "a b"
    with pytest.raises(DataError, match="no training references"):
        constant_caption([[]])


def test_dealt_captions_are_all_used_and_nobody_keeps_its_own() -> None:
    captions = {str(place): f"caption {place}" for place in range(50)}
    for seed in range(20):
        given = dealt(captions, seed)
        assert list(given) == list(captions) and sorted(given.values()) == sorted(captions.values())
        assert not any(given[id] == captions[id] for id in captions)
    assert dealt(captions, 1) == dealt(captions, 1) != dealt(captions, 2)
    with pytest.raises(DataError, match="at least two"):
        dealt({"a": "alone"})


@pytest.mark.parametrize(
    ("interval", "floors", "expected"),
    [
        ((0.1, 4.0), [], "higher"),
        ((-4.0, -0.1), [], "lower"),
        ((-0.1, 4.0), [], "not decided"),
        ((0.0, 4.0), [], "not decided"),
        ((0.1, 4.0), [(0.2, 9.0)], "higher"),
        ((0.1, 4.0), [(0.2, 9.0), (-0.1, 9.0)], "below the floor"),
        ((0.1, 4.0), [(0.0, 0.0)], "below the floor"),
        (None, [(0.2, 9.0)], ""),
        (None, [(-9.0, -0.2)], "below the floor"),
    ],
)
def test_only_what_intervals_say_is_said(
    interval: tuple[float, float] | None, floors: list[tuple[float, float]], expected: str
) -> None:
    def gap(ends: tuple[float, float]) -> Difference:
        return Difference(0.0, 1.0, sum(ends) / 2, *ends, 0.5, 1, 1)

    assert reading(None if interval is None else gap(interval), [gap(floor) for floor in floors]) == expected
