"""Decisions about differences between two captioners: `readings.py`, and the sign of a row's difference."""

from __future__ import annotations

import pytest
from scipy import stats

from benchmarks.studies.harness import Study
from benchmarks.studies.readings import chance_of, is_below, over_seeds, reading_of, uses_images
from benchmarks.studies.results_table import gain_of
from lightning_idc.report.comparison import Captioned


def training(score: float, identical: float, type_right: float) -> dict[str, object]:
    return {"score": score, "baselines": {"identical images": identical}, "facts": {"type": type_right}}


@pytest.mark.parametrize(
    ("differences", "pairs", "below", "compares", "reading"),
    [
        ([10, 11, 12], (8, 14), False, True, "higher"),
        ([-10, -11, -12], (-14, -8), False, True, "lower"),
        ([10, 11, 12], (-1, 14), False, True, "not decided"),  # other test pairs could reverse it
        ([1, 11, 30], (8, 14), False, True, "not decided"),  # another training could reverse it
        ([10, 11], (8, 14), False, True, "not decided"),  # only two trainings
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
    assert not uses_images([training(300, 100, 16), training(300, 100, 17), training(300, 100, 18)])  # chance level
    assert not uses_images([training(300, 100, 60)])  # one training has no interval


def test_types_that_are_right_by_always_naming_one() -> None:
    assert chance_of(1 / 6) == pytest.approx(100 / 6)
    assert chance_of(0.0) == 20  # one of five types, if every pair has changed
    assert chance_of(0.5) == 50  # "nothing changed" is right for half of the pairs
    types = [training(300, 100, 18.9), training(300, 100, 19), training(300, 100, 19.1)]
    assert uses_images(types) and not uses_images(types, unchanged=0.0)


def test_a_fact_has_its_own_control() -> None:
    """CIDEr-D is high for identical images because objects of the first image are named, but types are recognised."""
    seen = [training(300, 250, right) | {"identical_facts": {"type": 18.0}} for right in (60, 61, 62)]
    assert not uses_images(seen)
    assert uses_images(seen, measure="type")
    assert not uses_images([one | {"identical_facts": {"type": 45.0}} for one in seen], measure="type")
    assert not uses_images([training(300, 250, 60)] * 3, measure="type")  # no control was measured


def study(right: int) -> Study:
    """Two rows in three trainings: ``SFT`` has 10 % correct types, and ``ADPO`` has ``right`` minus the seed.

    The captions of identical images equal those of the pairs, with 10 % correct types.
    """
    ids = [f"{number:03}" for number in range(100)]
    words = ["one cube moved to the left", "two spheres became red again", "the lamp near the door is gone"]
    references = {id: [words[number % 3]] for number, id in enumerate(ids)}
    made = Study(references, "something changed", ["SFT", "ADPO"], unchanged=0.0)
    tenth = {id: {"type": number < 10} for number, id in enumerate(ids)}
    vague = dict.fromkeys(ids, "something changed")
    for seed in (1, 2, 3):
        judged = {id: {"type": number < right - seed} for number, id in enumerate(ids)}
        named = {id: references[id][0] for id in ids}
        rows = {"SFT": Captioned(vague, vague, tenth, tenth), "ADPO": Captioned(named, named, judged, tenth)}
        made.add(seed, {name: (captioned, {}) for name, captioned in rows.items()})
    return made


def test_study_compares_a_fact_with_that_of_identical_images() -> None:
    seen = study(70).summary()["ADPO"]
    gain = seen["facts_over"]["SFT"]["type"]
    assert gain["each_seed"] == pytest.approx([59, 58, 57]) and gain["reading"] == "higher"
    assert seen["over"][0]["reading"] == "below the baseline"  # CIDEr-D: identical images get the same captions
    assert seen["identical_facts"]["type"] == [10.0, 0.0]
    assert study(14).summary()["ADPO"]["facts_over"]["SFT"]["type"]["reading"] == "below the baseline"
    trainings = study(70).as_dict()["each_seed"]
    assert not is_below([one["ADPO"] for one in trainings], "type")
    assert gain_of({"summary": study(70).summary()}, "ADPO", "SFT", "type")["mean"] == pytest.approx(58)


def test_a_difference_in_the_other_order_has_the_other_sign() -> None:
    stored = {"row": "SFT", "mean": 5.0, "interval": [3.0, 7.0], "pairs": [2.0, 8.0], "each_seed": [4.0, 6.0]}
    world = {"summary": {"SFT": {"over": []}, "ADPO": {"over": [stored]}}}
    assert gain_of(world, "ADPO", "SFT")["mean"] == 5.0
    turned = gain_of(world, "SFT", "ADPO")
    assert (turned["mean"], turned["interval"], turned["each_seed"]) == (-5.0, [-7.0, -3.0], [-4.0, -6.0])
    with pytest.raises(KeyError, match="SFT and DPO"):
        gain_of(world | {"summary": {"SFT": {"over": []}, "DPO": {"over": []}}}, "SFT", "DPO")
