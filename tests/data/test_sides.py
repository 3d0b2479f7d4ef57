"""Left and right in captions. Oracle: sentences swapped by hand, in the style of the public benchmarks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_idc.data.transforms.sides import swap_sides


@pytest.mark.parametrize(
    ("text", "swapped"),
    [
        ("the ball that is left of the cube", "the ball that is right of the cube"),
        ("the cup on the left the person held", "the cup on the right the person held"),
        ("the right-most chair, the left most table", "the left-most chair, the right most table"),
        ("a van in the righthand lane turned left behind it", "a van in the lefthand lane turned right behind it"),
        ("the tree to the right next to the car", "the tree to the left next to the car"),
        ("UPPER LEFT corner. Right side", "UPPER RIGHT corner. Left side"),
        ("moved rightwards to the left's edge", "moved leftwards to the right's edge"),
        ("Rotate image to the right and crop", "Rotate image to the left and crop"),
        ("first tilt the whole picture to the left a bit", "first tilt the whole picture to the right a bit"),
        ("Move the plate right a bit over the pot", "Move the plate left a bit over the pot"),
    ],
)
def test_directions_are_swapped(text: str, swapped: str) -> None:
    assert swap_sides(text) == swapped
    assert swap_sides(swapped) == text


@pytest.mark.parametrize(
    "text",
    [
        "the right hand image shows more cars than the left-hand picture",
        "the picture on the right has no bench; the photo on left has one",
        "the left side image and the leftmost frame",
        "the white car has left, and two people have just left the parking lot",
        "the truck left the scene. only one box is left.",
        "the man right next to the door was left behind",
        "a bright copyright and a leftover",
        "rotate it like the picture on the left; compare the image to the right",
        "the dog left a bit of its food",
        "the car moved in the picture to the right",
    ],
)
def test_image_references_verbs_and_adverbs_are_unchanged(text: str) -> None:
    assert swap_sides(text) == text


_WORDS = (
    "left",
    "right",
    "Left",
    "RIGHT",
    "leftmost",
    "right-hand",
    "has",
    "is",
    "the",
    "of",
    "image",
    "picture",
    "on",
    "next",
    "to",
    ".",
    ",",
    "behind",
    "turned",
    "a",
    "bit",
)


@given(st.lists(st.one_of(st.sampled_from(_WORDS), st.text(max_size=3)), max_size=12).map(" ".join))
def test_swapping_twice_restores_the_text(text: str) -> None:
    swapped = swap_sides(text)
    assert len(swapped.split()) == len(text.split())
    if all(word in (word.lower(), word.upper(), word.capitalize()) for word in text.split()):
        assert swap_sides(swapped) == text


def test_real_sentences(shared: Path) -> None:
    """Two swaps restore each Spot-the-Diff sentence; the verb "left" and names such as "left image" are not swapped."""
    path = shared / "realdata/annotations/spot_the_diff/val.json"
    if not path.is_file():
        pytest.skip("the annotations of Spot-the-Diff are not beside this checkout")
    sentences = [sentence for record in json.loads(path.read_text()) for sentence in record["sentences"]]
    sided = [sentence for sentence in sentences if {"left", "right"} & set(sentence.split())]
    assert len(sided) > 400
    for sentence in sided:
        swapped = swap_sides(sentence)
        assert swap_sides(swapped) == sentence
        assert "has right the" not in swapped
        for name in ("left image", "right image", "left picture", "right picture"):
            assert swapped.count(name) == sentence.count(name)
