"""When a difference between two captioners is decided: `readings.py`, and the sign of a row's difference."""

from __future__ import annotations

import pytest
from scipy import stats

from benchmarks.studies.readings import over_seeds, reading_of, uses_images
from benchmarks.studies.results_table import gain_of


def training(score: float, identical: float, type_right: float) -> dict[str, object]:
    return {"score": score, "baselines": {"identical images": identical}, "facts": {"type": type_right}}


@pytest.mark.parametrize(
    ("differences", "pairs", "below", "compares", "reading"),
    [
        ([10, 11, 12], (8, 14), False, True, "higher"),
        ([-10, -11, -12], (-14, -8), False, True, "lower"),
        ([10, 11, 12], (-1, 14), False, True, "not decided"),  # other test pairs
        ([1, 11, 30], (8, 14), False, True, "not decided"),  # another training
        ([10, 11], (8, 14), False, True, "not decided"),  # two trainings
        ([10, 11, 12], (8, 14), False, False, "not decided"),  # neither captioner compares the images
        ([10, 11, 12], (8, 14), True, True, "below the baseline"),
    ],
)
def test_reading_of_a_difference(
    differences: list[float], pairs: tuple[float, float], below: bool, compares: bool, reading: str
) -> None:
    assert reading_of({**over_seeds(differences), "pairs": pairs}, below, compares) == reading


def test_interval_over_trainings_is_students() -> None:
    differences = [1.0, 2.0, 4.0, 9.0]
    expected = stats.ttest_1samp(differences, 0.0).confidence_interval(0.95)
    assert over_seeds(differences)["interval"] == pytest.approx([expected.low, expected.high])


def test_a_captioner_that_says_the_same_of_identical_images_does_not_compare_them() -> None:
    assert uses_images([training(300, 199, 60), training(300, 199, 61), training(300, 199, 62)])
    assert not uses_images([training(300, 201, 60), training(300, 201, 61), training(300, 201, 62)])
    assert not uses_images([training(300, 100, 16), training(300, 100, 17), training(300, 100, 18)])  # types by chance
    assert not uses_images([training(300, 100, 60)])  # one training has no interval


def test_a_difference_in_the_other_order_has_the_other_sign() -> None:
    stored = {"row": "SFT", "mean": 5.0, "interval": [3.0, 7.0], "pairs": [2.0, 8.0], "each_seed": [4.0, 6.0]}
    world = {"summary": {"SFT": {"over": []}, "ADPO": {"over": [stored]}}}
    assert gain_of(world, "ADPO", "SFT")["mean"] == 5.0
    turned = gain_of(world, "SFT", "ADPO")
    assert (turned["mean"], turned["interval"], turned["each_seed"]) == (-5.0, [-7.0, -3.0], [-4.0, -6.0])
    with pytest.raises(KeyError, match="SFT and DPO"):
        gain_of(world | {"summary": {"SFT": {"over": []}, "DPO": {"over": []}}}, "SFT", "DPO")
