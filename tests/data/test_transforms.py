"""Transforms of pairs. Oracle: an image that is painted from its own boxes, before or after the transform."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from lightning_idc.data.transforms.pairs import (
    Compose,
    CropToChange,
    Flip,
    Jitter,
    PairTransform,
    RandomCrop,
    Resize,
    swap_heights,
    swap_sides,
)
from lightning_idc.images.types import PairSample
from lightning_idc.utils.errors import ConfigError, DataError

BOX = (8.0, 4.0, 24.0, 20.0)


def painted(width: int = 64, height: int = 48) -> PairSample:
    """Return a pair that is white inside the box and black elsewhere, on both sides."""
    mask = torch.zeros(height, width, dtype=torch.bool)
    x1, y1, x2, y2 = map(int, BOX)
    mask[y1:y2, x1:x2] = True
    image = (mask * 255).to(torch.uint8).expand(3, -1, -1).clone()
    boxes = torch.tensor([BOX, BOX]).view(1, 2, 4)
    return PairSample("p", image, image.clone(), ["the left thing"], "add", boxes, mask.expand(2, -1, -1).clone())


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def extent(bright: torch.Tensor) -> list[int]:
    rows, columns = torch.where(bright)
    return [int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1]


@pytest.mark.parametrize(
    "transform",
    [Resize((96, 32)), Flip(1.0), Flip(0.0, 1.0), RandomCrop(0.9), Compose([RandomCrop(0.9), Flip(1.0, 1.0)])],
)
@pytest.mark.parametrize("seed", range(4))
def test_images_boxes_and_masks_are_transformed_together(transform: PairTransform, seed: int) -> None:
    moved = transform(painted(), seeded(seed))
    assert torch.equal(moved.before, moved.after)
    assert moved.boxes is not None and moved.masks is not None
    from_image, from_mask = extent(moved.before[0] > 127), extent(moved.masks[1])
    for side in range(2):
        assert moved.boxes[0, side].tolist() == pytest.approx(from_image, abs=1.01)
        assert moved.boxes[0, side].tolist() == pytest.approx(from_mask, abs=1.01)


def test_flip_mirrors_exactly_and_swaps_words() -> None:
    sample = painted()
    flipped = Flip(1.0)(sample, seeded(0))
    assert torch.equal(flipped.before, sample.before.flip(-1))
    assert flipped.boxes is not None and flipped.boxes[0, 0].tolist() == [64 - 24, 4, 64 - 8, 20]
    assert flipped.captions == ["the right thing"] and sample.captions == ["the left thing"]
    again = Flip(1.0)(flipped, seeded(0))
    assert torch.equal(again.boxes, sample.boxes) and again.captions == sample.captions


def test_upside_down_swaps_top_and_bottom_only() -> None:
    sample = replace(painted(), captions=["Upper left: a thing below the top, lowermost"])
    flipped = Flip(0.0, 1.0)(sample, seeded(0))
    assert flipped.captions == ["Lower left: a thing above the bottom, uppermost"]
    assert torch.equal(flipped.before, sample.before.flip(-2)) and flipped.meta == {}
    assert swap_heights(flipped.captions[0]) == sample.captions[0]


@pytest.mark.parametrize("seed", range(8))
def test_a_window_is_around_a_change_and_boxes_keep_their_extent(seed: int) -> None:
    sample = painted()
    assert sample.boxes is not None
    far = torch.tensor([[60.0, 44.0, 64.0, 48.0]]).expand(2, -1)  # no window of 20 pixels holds both
    cropped = CropToChange(20, anywhere=0.0)(replace(sample, boxes=torch.cat([sample.boxes, far[None]])), seeded(seed))
    assert cropped.before.shape == cropped.after.shape == (3, 20, 20) and cropped.masks is not None
    boxes = cropped.boxes
    assert boxes is not None and bool(boxes[:, 1, 0].isnan().sum() == 1)
    if not bool(boxes[0].isnan().any()):
        x1, y1, x2, y2 = boxes[0, 1].tolist()
        assert (x2 - x1, y2 - y1) == (16, 16) and x1 < 20 and y1 < 20 and x2 > 0 and y2 > 0
        inside = [max(0, int(x1)), max(0, int(y1)), min(20, int(x2)), min(20, int(y2))]
        assert extent(cropped.before[0] > 127) == extent(cropped.masks[1]) == inside


def test_window_is_around_a_hard_negative() -> None:
    sample = painted()
    assert sample.boxes is not None
    before = torch.zeros_like(sample.before)
    after = before.clone()
    after[:, 4:11, 48:55] = 255  # contains a whole 4 x 4 block of the grid at any offset
    after[:, 40:43, 50:53] = 255  # too thin
    other = replace(sample, before=before, after=after, boxes=torch.full((1, 2, 4), torch.nan))
    seen = [CropToChange(12, 0.0, 1.0)(other, seeded(seed)) for seed in range(8)]
    assert all(int((cropped.before != cropped.after)[0].sum()) > 9 for cropped in seen)
    boxed = replace(other, boxes=torch.tensor([[[48.0, 4.0, 55.0, 11.0]] * 2]))
    assert len(CropToChange(12, 0.0, 1.0)._centres(boxed, 0.5)) == 0
    with pytest.raises(ConfigError, match=r"anywhere and mistaken are 0\.6 and 0\.5"):
        CropToChange(12, 0.6, 0.5)


def test_window_must_fit_and_is_random_without_boxes() -> None:
    with pytest.raises(DataError, match="'p' is 64x48; a window of 49x49 does not fit"):
        CropToChange(49)(painted(), seeded(0))
    for sample in (replace(painted(), boxes=None), replace(painted(), boxes=torch.full((1, 2, 4), torch.nan))):
        sides = {tuple(CropToChange(8)(sample, seeded(seed)).before.shape) for seed in range(4)}
        assert sides == {(3, 8, 8)}


def test_missing_boxes_stay_nan() -> None:
    sample = painted()
    sample.boxes[:, 0] = torch.nan
    for transform in (Resize((20, 30)), Flip(1.0), RandomCrop(0.5)):
        boxes = transform(sample, seeded(1)).boxes
        assert boxes[:, 0].isnan().all() and not boxes[:, 1].isnan().any()


@pytest.mark.parametrize(
    ("text", "swapped"),
    [
        ("the cube left of the ball", "the cube right of the ball"),
        ("Left and RIGHT", "Right and LEFT"),
        ("the leftmost one, right-hand side", "the rightmost one, left-hand side"),
        ("in the left image the cup is on the right", "in the left image the cup is on the left"),
        ("the right picture shows a bird on the left", "the right picture shows a bird on the right"),
        ("bright lefty copyright", "bright lefty copyright"),
    ],
)
def test_words_for_sides(text: str, swapped: str) -> None:
    assert swap_sides(text) == swapped
    assert swap_sides(swapped) == text


def test_randomness_comes_from_the_generator_only() -> None:
    transform = Compose([RandomCrop(0.5), Flip(), Jitter()])
    torch.manual_seed(0)
    state = torch.get_rng_state()
    first, second, other = (transform(painted(), seeded(seed)) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first.before, second.before) and torch.equal(first.boxes, second.boxes)
    assert not torch.equal(first.before, other.before)


def test_jitter_differs_between_images() -> None:
    sample = painted()
    lit = Jitter()(sample, seeded(0))
    assert not torch.equal(lit.before, lit.after)
    assert torch.equal(lit.boxes, sample.boxes) and lit.captions == sample.captions and lit.before.dtype == torch.uint8


def test_flip_probability() -> None:
    flips = sum(Flip(0.25)(painted(), seeded(seed)).captions == ["the right thing"] for seed in range(400))
    assert 70 <= flips <= 130  # 100 expected; three and a half standard deviations


def test_box_outside_the_crop_is_nan() -> None:
    """Oracle: whether any of the white box is left in the cropped image."""
    seen = set()
    for seed in range(60):
        cropped = RandomCrop(0.3)(painted(), seeded(seed))
        gone = bool(cropped.boxes.isnan().all())
        assert gone or not cropped.boxes.isnan().any()
        assert gone == (cropped.before.max() == 0)
        seen.add(gone)
    assert seen == {True, False}


@pytest.mark.parametrize("size", [(8, 12), (30, 40), (48, 12), (96, 12)])
def test_small_change_survives_mask_downscaling(size: tuple[int, int]) -> None:
    for x in range(0, 64, 7):
        mask = torch.zeros(2, 48, 64, dtype=torch.bool)
        mask[:, 17, x] = True
        small = Resize(size)(replace(painted(), masks=mask), seeded(0)).masks
        assert small is not None and small.dtype == torch.bool
        rows, columns = torch.where(small[0])
        assert len(rows), f"the change at {x} is lost"
        # the pixels of the mask are at the position of the change
        assert (rows * 48 < 18 * size[0]).all() and ((rows + 1) * 48 > 17 * size[0]).all()
        assert (columns * 64 < (x + 1) * size[1]).all() and ((columns + 1) * 64 > x * size[1]).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Flip(50),
        lambda: Flip(0.5, -0.1),
        lambda: RandomCrop(1.5),
        lambda: RandomCrop(0),
        lambda: Jitter(brightness=3),
        lambda: Jitter(contrast=-0.1),
        lambda: Jitter(tint=float("nan")),
    ],
)
def test_fractions_must_be_between_0_and_1(make: Callable[[], PairTransform]) -> None:
    with pytest.raises(
        ConfigError, match=r"(probability|upside_down|min_scale|brightness|contrast|tint) is .*; expected a number"
    ):
        make()
