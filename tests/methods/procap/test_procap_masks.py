"""Masks of appendix D and warps of appendix E: what each may and may not do, and how often it comes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lightning_idc.methods.procap import masks, warps
from lightning_idc.utils.errors import ConfigError

GRID = (4, 14, 14)


def dice(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_four_rules_come_as_often_as_the_paper_says() -> None:
    generator = dice(0)
    kinds = {"entire": 0, "in": 0, "out": 0, "random": 0}
    for _ in range(2000):
        mask = masks.multi_granularity_mask(GRID, generator)
        same = bool((mask == mask[:1]).all())
        filled = mask[0].nonzero()
        lengths = filled.max(0).values - filled.min(0).values + 1
        box = int(lengths.prod()) == len(filled)
        kinds["entire" if mask.all() else "random" if not same else "in" if box else "out"] += 1
    # three standard deviations of a share of 0.1 of 2000 are 40; an out-block at the border may itself be a box
    assert abs(kinds["entire"] - 200) < 45 and abs(kinds["random"] - 1400) < 65
    assert abs(kinds["in"] + kinds["out"] - 400) < 60


def test_random_patches_have_a_chance_of_their_own_between_a_fifth_and_a_half() -> None:
    generator = dice(1)
    share = torch.stack([masks.random_patch_mask(GRID, generator).float() for _ in range(400)])
    # the mean of U(0.2, 0.5), and as variable as independent patches are
    assert abs(float(share.mean()) - 0.35) < 0.005
    per_sample = share.flatten(1).mean(1)
    assert float(per_sample.std()) < 0.03


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.integers(2, 16), st.integers(2, 16), st.integers(0, 2**31))
@example(2, 6, 554)
def test_a_block_is_one_rectangle_within_its_share_of_the_area(height: int, width: int, seed: int) -> None:
    mask = masks.in_block_mask((3, height, width), dice(seed))
    assert bool((mask == mask[:1]).all()), "the same in all frames"
    cells = mask[0].nonzero()
    lengths = cells.max(0).values - cells.min(0).values + 1
    assert int(lengths.prod()) == len(cells), "every cell of its bounding box"
    assert 0.2 - 1e-9 <= len(cells) / (height * width) <= 0.8 + 1e-9
    assert torch.equal(masks.out_of_block_mask((3, height, width), dice(seed)), ~mask)


def test_blocks_cover_half_of_the_frame_on_average_and_reach_everywhere() -> None:
    generator = dice(2)
    drawn = torch.stack([masks.random_rectangle(14, 14, generator) for _ in range(1500)]).float()
    areas = drawn.flatten(1).mean(1)
    assert abs(float(areas.mean()) - 0.5) < 0.02
    assert float(areas.min()) < 0.25 and float(areas.max()) > 0.75
    assert float(drawn.mean(0).min()) > 0.02, "corners too"


def test_a_grid_without_such_a_rectangle_is_refused() -> None:
    with pytest.raises(ConfigError, match="1x1"):
        masks.random_rectangle(1, 1, dice(0))


def frames(seed: int = 3, count: int = 4) -> torch.Tensor:
    return torch.randint(0, 256, (count, 3, 16, 16), generator=dice(seed), dtype=torch.uint8)


def changed(before: torch.Tensor, after: torch.Tensor) -> list[int]:
    return [row for row in range(len(before)) if not torch.equal(before[row], after[row])]


@pytest.mark.parametrize("seed", range(8))
def test_each_warp_breaks_what_it_says_and_nothing_else(seed: int) -> None:
    given_frames, others = frames(), frames(4)
    foreign = warps.foreign_frame(given_frames, others, dice(seed))
    (place,) = changed(given_frames, foreign)
    assert any(torch.equal(foreign[place], other) for other in others)

    shuffled = warps.shuffled_frames(given_frames, dice(seed))
    assert len(changed(given_frames, shuffled)) >= 2
    assert sorted(map(bytes, (f.numpy().tobytes() for f in shuffled))) == sorted(
        map(bytes, (f.numpy().tobytes() for f in given_frames))
    )

    gray = torch.full((4, 3, 8, 8), 128, dtype=torch.uint8)
    shifted = warps.shifted_color(gray, dice(seed)).float() - 128
    assert [bool(shifted[:, c].any()) for c in range(3)].count(True) == 1, "one channel"
    assert len(shifted.sum(1).unique()) == 1, "by one number in all frames"

    moved = warps.moved_frame(given_frames, dice(seed))
    assert len(changed(given_frames, moved)) == 1


def test_no_turn_no_move_no_zoom_is_no_warp() -> None:
    assert torch.equal(warps.moved_frame(frames(), dice(0), degrees=0, shift=0, zoom=0), frames())


def test_a_turn_follows_the_matrix_of_eq_19() -> None:
    # the output at (x, y) is read at the turned place: a spot to the right of the middle is seen above it
    image = torch.zeros(1, 3, 9, 9, dtype=torch.uint8)
    image[..., 4, 7] = 200
    seed = max(range(4000), key=lambda s: float(torch.rand((), generator=dice(s))))  # nearly the greatest turn
    turned = warps.moved_frame(image, dice(seed), degrees=90, shift=0, zoom=0)
    assert divmod(int(turned[0, 0].flatten().argmax()), 9) == (1, 4)


def test_the_only_procedure_of_a_batch_is_broken_too() -> None:
    alone = frames()[:0]
    for seed in range(20):
        assert not torch.equal(warps.warp(frames(), alone, dice(seed)), frames())


def test_two_frames_can_be_shuffled() -> None:
    pair = frames(count=2)
    assert torch.equal(warps.shuffled_frames(pair, dice(0)), pair.flip(0))
