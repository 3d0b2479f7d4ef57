"""Masks of appendix D and warps of appendix E: their effects and frequencies. Oracle: the rules in the paper."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lightning_idc.methods.procap import masks, warps
from lightning_idc.utils.errors import ConfigError

GRID = (4, 14, 14)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.slow
def test_mask_rules_have_the_probabilities_of_the_paper() -> None:
    generator = seeded(0)
    counts = {"entire": 0, "in": 0, "out": 0, "random": 0}
    for _ in range(2000):
        mask = masks.multi_granularity_mask(GRID, generator)
        same = bool((mask == mask[:1]).all())
        filled = mask[0].nonzero()
        lengths = filled.max(0).values - filled.min(0).values + 1
        box = int(lengths.prod()) == len(filled)
        counts["entire" if mask.all() else "random" if not same else "in" if box else "out"] += 1
    # with a fraction of 0.1 of 2000, three standard deviations are 40; an out-block at the border can be a box, too
    assert abs(counts["entire"] - 200) < 45 and abs(counts["random"] - 1400) < 65
    assert abs(counts["in"] + counts["out"] - 400) < 60


def test_random_patch_mask_statistics() -> None:
    generator = seeded(1)
    masked = torch.stack([masks.random_patch_mask(GRID, generator).float() for _ in range(400)])
    # the mean of U(0.2, 0.5), with the variance of independent patches
    assert abs(float(masked.mean()) - 0.35) < 0.005
    per_sample = masked.flatten(1).mean(1)
    assert float(per_sample.std()) < 0.03


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.integers(2, 16), st.integers(2, 16), st.integers(0, 2**31))
@example(2, 6, 554)
def test_block_masks_are_rectangles_of_the_right_area(height: int, width: int, seed: int) -> None:
    mask = masks.in_block_mask((3, height, width), seeded(seed))
    assert bool((mask == mask[:1]).all()), "the same in all frames"
    cells = mask[0].nonzero()
    lengths = cells.max(0).values - cells.min(0).values + 1
    assert int(lengths.prod()) == len(cells), "every cell of its bounding box"
    assert 0.2 - 1e-9 <= len(cells) / (height * width) <= 0.8 + 1e-9
    assert torch.equal(masks.out_of_block_mask((3, height, width), seeded(seed)), ~mask)


def test_random_rectangle_statistics() -> None:
    generator = seeded(2)
    rectangles = torch.stack([masks.random_rectangle(14, 14, generator) for _ in range(1500)]).float()
    areas = rectangles.flatten(1).mean(1)
    assert abs(float(areas.mean()) - 0.5) < 0.02
    assert float(areas.min()) < 0.25 and float(areas.max()) > 0.75
    assert float(rectangles.mean(0).min()) > 0.02, "corners too"


def test_rejects_grids_without_a_rectangle() -> None:
    with pytest.raises(ConfigError, match="1x1"):
        masks.random_rectangle(1, 1, seeded(0))


def frames(seed: int = 3, count: int = 4) -> torch.Tensor:
    return torch.randint(0, 256, (count, 3, 16, 16), generator=seeded(seed), dtype=torch.uint8)


def changed(before: torch.Tensor, after: torch.Tensor) -> list[int]:
    return [row for row in range(len(before)) if not torch.equal(before[row], after[row])]


@pytest.mark.parametrize("seed", range(8))
def test_each_warp_changes_only_its_target(seed: int) -> None:
    originals, others = frames(), frames(4)
    foreign = warps.foreign_frame(originals, others, seeded(seed))
    (changed_row,) = changed(originals, foreign)
    assert any(torch.equal(foreign[changed_row], other) for other in others)

    shuffled = warps.shuffled_frames(originals, seeded(seed))
    assert len(changed(originals, shuffled)) >= 2
    assert sorted(map(bytes, (f.numpy().tobytes() for f in shuffled))) == sorted(
        map(bytes, (f.numpy().tobytes() for f in originals))
    )

    gray = torch.full((4, 3, 8, 8), 128, dtype=torch.uint8)
    shifted = warps.shifted_color(gray, seeded(seed)).float() - 128
    assert [bool(shifted[:, c].any()) for c in range(3)].count(True) == 1, "one channel"
    assert len(shifted.sum(1).unique()) == 1, "by one number in all frames"

    moved = warps.moved_frame(originals, seeded(seed))
    assert len(changed(originals, moved)) == 1


def test_moved_frame_with_zero_motion_is_the_identity() -> None:
    assert torch.equal(warps.moved_frame(frames(), seeded(0), degrees=0, shift=0, zoom=0), frames())


def test_rotation_equals_eq_19() -> None:
    # a pixel of the output is sampled at its rotated position, so a spot right of the centre moves above it
    image = torch.zeros(1, 3, 9, 9, dtype=torch.uint8)
    image[..., 4, 7] = 200
    seed = max(range(4000), key=lambda s: float(torch.rand((), generator=seeded(s))))  # almost the maximum angle
    turned = warps.moved_frame(image, seeded(seed), degrees=90, shift=0, zoom=0)
    assert divmod(int(turned[0, 0].flatten().argmax()), 9) == (1, 4)


def test_warp_without_other_procedures() -> None:
    alone = frames()[:0]
    for seed in range(20):
        assert not torch.equal(warps.warp(frames(), alone, seeded(seed)), frames())


def test_shuffling_two_frames() -> None:
    pair = frames(count=2)
    assert torch.equal(warps.shuffled_frames(pair, seeded(0)), pair.flip(0))
