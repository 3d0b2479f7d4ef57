"""Baseline scores and verdicts. Oracle: a search over all captions, and hand-made intervals."""

from __future__ import annotations

import itertools

import pytest

from lightning_idc.metrics.baselines import constant_caption, shuffled_captions, verdict
from lightning_idc.metrics.bootstrap import Difference
from lightning_idc.metrics.captions import score_captions
from lightning_idc.utils.errors import DataError

SIZES, COLORS, SHAPES = ("small", "large"), ("red", "blue", "gray"), ("cube", "sphere")
TRAIN = [
    [f"the {size} {color} {shape} moved", f"the {color} {shape} is elsewhere"]
    for size, color, shape in itertools.product(SIZES, COLORS, SHAPES)
    if (size, color) != ("small", "gray")
] + [["nothing at all"]] * 2


def test_constant_caption_is_the_best_and_not_the_most_frequent() -> None:
    references = {str(index): texts for index, texts in enumerate(TRAIN)}

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


def test_shuffled_captions_are_a_permutation_without_fixed_points() -> None:
    captions = {str(index): f"caption {index}" for index in range(50)}
    for seed in range(20):
        shuffled = shuffled_captions(captions, seed)
        assert list(shuffled) == list(captions) and sorted(shuffled.values()) == sorted(captions.values())
        assert not any(shuffled[id] == captions[id] for id in captions)
    assert shuffled_captions(captions, 1) == shuffled_captions(captions, 1) != shuffled_captions(captions, 2)
    with pytest.raises(DataError, match="at least two"):
        shuffled_captions({"a": "alone"})


@pytest.mark.parametrize(
    ("interval", "baselines", "expected"),
    [
        ((0.1, 4.0), [], "higher"),
        ((-4.0, -0.1), [], "lower"),
        ((-0.1, 4.0), [], "not decided"),
        ((0.0, 4.0), [], "not decided"),
        ((0.1, 4.0), [(0.2, 9.0)], "higher"),
        ((0.1, 4.0), [(0.2, 9.0), (-0.1, 9.0)], "below the baseline"),
        ((0.1, 4.0), [(0.0, 0.0)], "below the baseline"),
        (None, [(0.2, 9.0)], ""),
        (None, [(-9.0, -0.2)], "below the baseline"),
    ],
)
def test_verdict_follows_the_intervals(
    interval: tuple[float, float] | None, baselines: list[tuple[float, float]], expected: str
) -> None:
    def gap(ends: tuple[float, float]) -> Difference:
        return Difference(0.0, 1.0, sum(ends) / 2, *ends, 0.5, 1, 1)

    assert verdict(None if interval is None else gap(interval), [gap(ends) for ends in baselines]) == expected
