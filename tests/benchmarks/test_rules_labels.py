"""Kinds of changes that the benchmark of the rules reads from editing instructions."""

from __future__ import annotations

import pytest

from benchmarks.rules import instruction_kind, overlap


@pytest.mark.parametrize(
    ("instruction", "kind"),
    [
        ("Put a cat on the seat.", "added"),
        ("let there be a bottle of wine", "added"),
        ("Remove the man.", "removed"),
        ("change the white couch to a brown couch", "recoloured"),
        ("Move the chair to the left", "moved"),
        ("Put down the seat.", None),
        ("Change the banana to a microphone.", None),
        ("transform the car into a red sports car", None),
    ],
)
def test_kind_by_the_verb(instruction: str, kind: str | None) -> None:
    assert instruction_kind(instruction) == kind


def test_boxes_that_touch_do_not_overlap() -> None:
    assert overlap((0, 0, 4, 4), (3, 3, 8, 8)) and not overlap((0, 0, 4, 4), (4, 0, 8, 4))
