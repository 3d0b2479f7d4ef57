"""Words on drawn pages with known moves."""

from __future__ import annotations

import numpy as np
import torch

from lightning_idc.models.web.candidates import CANDIDATES, find_candidates
from lightning_idc.models.web.core import find_core
from lightning_idc.models.web.details import NUM_DETAILS, describe_candidates
from lightning_idc.models.web.exchanged import compare_words
from lightning_idc.models.web.words import Words, clusters, match_words
from lightning_idc.utils.boxes import box_iou

WIDTHS = [30, 18, 42, 25, 36, 22]


def word(width: int, seed: int) -> np.ndarray:
    """Return marks whose random heights differ between words, ``(12, width)``, 0 on white."""
    random = np.random.default_rng(seed)
    image = np.full((12, width), 255, np.uint8)
    for left in range(0, width - 2, 4):
        image[random.integers(0, 6) : random.integers(8, 12), left : left + 3] = 0
    image[5:7] = 0
    return image


def text(order: list[int], lefts: list[int], tops: list[int], height: int = 160) -> np.ndarray:
    """Draw words at the given positions of a page, uint8 ``(3, H, 300)``."""
    page = np.full((3, height, 300), 255, np.uint8)
    for index, left, top in zip(order, lefts, tops, strict=True):
        page[:, top : top + 12, left : left + WIDTHS[index]] = word(WIDTHS[index], index)
    return page


def words_of(before: np.ndarray, after: np.ndarray) -> Words:
    core = find_core(before, after)
    assert core is not None
    return match_words(before, after, core)


BEFORE = text([0, 1, 2, 3, 4, 5], [10, 60, 100, 10, 60, 110], [50, 50, 50, 80, 80, 80])


def test_words_that_wrap_anew_have_partners_and_a_removed_one_has_none() -> None:
    # word 1 is removed, and the words after it move to the next positions in the two lines
    after = text([0, 2, 3, 4, 5], [10, 60, 115, 10, 60], [50, 50, 50, 80, 80])
    words = words_of(BEFORE, after)
    assert len(words.before) == 5 and len(words.new) == 0, "word 0 has no changed pixel"
    ((x1, y1, x2, y2),) = words.gone.tolist()
    assert box_iou((x1, y1, x2, y2), (60, 50, 78, 62)) > 0.7
    moves = {tuple(move) for move in words.moves[~words.is_gone].tolist()}
    assert moves == {(-40, 0), (105, -30), (-50, 0)}
    values = compare_words(words)
    assert values["gone_only"] == 1 and values["words_still"] == 0 and np.isfinite(list(values.values())).all()


def test_a_word_of_another_color_stays_and_one_with_another_text_is_exchanged() -> None:
    after = BEFORE.copy()
    after[0, 50:62, 60:80] = np.where(BEFORE[0, 50:62, 60:80] == 0, 120, 255)
    words = words_of(BEFORE, after)
    assert words.partner.tolist() == [0] and not words.is_moved.any()
    after = text([0, 4, 2, 3, 4, 5], [10, 58, 100, 10, 60, 110], [50, 50, 50, 80, 80, 80])
    words = words_of(BEFORE, after)
    values = compare_words(words)
    assert len(words.gone) == len(words.new) == 1 and values["gone_to_new_width"] > 0.5


def test_words_that_leave_the_page_are_not_gone() -> None:
    after = text([0, 1, 2, 3, 4, 5], [10, 60, 100, 10, 60, 110], [73, 73, 73, 103, 103, 103])[:, :110]
    words = words_of(BEFORE[:, :110], after)
    assert len(words.gone) == 0 and len(words.before) == 3, "the second line is below the end"
    assert np.array_equal(words.moves, [[0, 23]] * 3)


def test_details_tell_the_box_of_the_removed_word_from_others() -> None:
    after = text([0, 2, 3, 4, 5], [10, 60, 115, 10, 60], [50, 50, 50, 80, 80])
    core = find_core(BEFORE, after)
    assert core is not None
    words = match_words(BEFORE, after, core)
    boxes = find_candidates(BEFORE, core, words)
    details = describe_candidates(boxes, words, core)
    assert details.shape == (len(CANDIDATES), NUM_DETAILS) and np.isfinite(details).all()
    best = int(np.argmax([box_iou(box, (60, 50, 78, 62)) for box in boxes]))
    assert box_iou(boxes[best], (60, 50, 78, 62)) > 0.7
    gone, gone_of_box = details[:, 8], details[:, 12]
    assert gone[best] > 0.9 and gone_of_box[best] > 0.95
    everything = [(0, 0, 300, 160), *boxes[1:]]
    assert describe_candidates(everything, words, core)[0, 12] < 0.3


def test_clusters_are_ordered_by_their_first_box() -> None:
    boxes = np.array([[0, 0, 10, 10], [100, 0, 110, 10], [15, 0, 25, 10], [0, 22, 10, 30]])
    assert [part.tolist() for part in clusters(boxes)] == [boxes[[0, 2, 3]].tolist(), boxes[[1]].tolist()]


def test_a_pair_without_words_has_measures() -> None:
    before = np.full((3, 40, 60), 255, np.uint8)
    after = before.copy()
    after[:, 10:30, 10:40] = 240  # no edge is strong enough to belong to a word
    words = words_of(before, after)
    assert len(words.before) == len(words.after) == 0
    assert np.isfinite(list(compare_words(words).values())).all()
    assert torch.tensor(describe_candidates([(10, 10, 40, 30)], words, find_core(before, after))).isfinite().all()  # type: ignore[arg-type]
