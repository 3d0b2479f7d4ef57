"""Moves of pixels and changed parts, on drawn pages with known changes."""

from __future__ import annotations

import numpy as np
import pytest

from lightning_idc.models.web.core import find_core
from lightning_idc.models.web.measures import measure
from lightning_idc.models.web.words import match_words


def box(page: np.ndarray, left: int, top: int, seed: int, size: tuple[int, int] = (40, 12)) -> None:
    """Draw a multicolored image into a page ``(3, H, W)``; the part beyond the left edge is cut off."""
    random = np.random.default_rng(seed)
    picture = random.integers(0, 200, (3, size[1], size[0]), dtype=np.uint8)
    start = max(0, -left)
    page[:, top : top + size[1], left + start : left + size[0]] = picture[:, :, start:]


def marks(page: np.ndarray, left: int, top: int, gap: int, underlined: bool = False) -> None:
    """Draw five letters with a gap between them."""
    for number, height in enumerate((12, 8, 11, 7, 9)):
        x = left + number * (5 + gap)
        page[:, top + 12 - height : top + 12, x : x + 5] = 0
    if underlined:
        page[:, top + 13, left : left + 25 + 4 * gap] = 0


def blank() -> np.ndarray:
    return np.full((3, 120, 240), 255, np.uint8)


def measured(before: np.ndarray, after: np.ndarray) -> dict[str, float]:
    core = find_core(before, after)
    assert core is not None
    return measure(before, after, core, match_words(before, after, core))


@pytest.mark.parametrize("move", [(24, 0), (-24, 0), (0, 5), (0, -12)], ids=str)
def test_an_element_that_moves_is_at_another_place_even_over_others_and_the_edge(move: tuple[int, int]) -> None:
    before, after = blank(), blank()
    for page, (along, down) in ((before, (0, 0)), (after, move)):
        box(page, 60, 40, seed=1)
        box(page, 4 + along, 40 + down, seed=0)  # overlaps the other box or leaves the page
    values = measured(before, after)
    assert (values["move_along"], values["move_down"]) == move
    assert values["move_share"] > 0.6 and values["move_lead"] > 0.3 and values["move_lead_across"] > 0.3


def test_a_removed_element_and_another_picture_are_no_move() -> None:
    before, after = blank(), blank()
    box(before, 60, 40, seed=1)
    assert measured(before, after)["move_marks_gone"] == 1 and measured(before, after)["move_share"] < 0.1
    box(after, 60, 40, seed=2)
    values = measured(before, after)
    assert values["move_share"] < 0.1 and values["move_marks_gone"] == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("underlined", [False, True])
def test_letter_spacing_below_a_line_that_it_pushes_is_measured_in_the_part_that_changed(underlined: bool) -> None:
    before, after = blank(), blank()
    for page, gap in ((before, 1), (after, 3)):
        box(page, 100 + 4 * (gap - 1), 20, seed=0)  # the first changed line
        marks(page, 20, 60, gap, underlined)
    values = measured(before, after)
    assert values["part_mark_gap"] == 2 and values["part_mark_width"] == 0
    assert values["part_marks_gone"] == values["part_marks_new"] == 0
    assert values["mark_gap"] == 0 and values["part_along_slope"] > 20


def test_parts_have_measures_where_nothing_went_or_came() -> None:
    before, after = blank(), blank()
    marks(before, 20, 60, 1)
    values = measured(before, after)
    assert values["part_marks_before"] == pytest.approx(np.log1p(5)) and values["part_marks_after"] == 0
    values = measured(after, before)
    assert values["part_marks_before"] == 0 and values["part_marks_after"] == pytest.approx(np.log1p(5))
