"""ChangedThings on squares on a plain background, under changes of light and viewpoint."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from lightning_idc.methods.img_diff.areas import DifferenceAreas
from lightning_idc.synthesis.models.contours import DifferenceContours
from lightning_idc.synthesis.models.details import region_of
from lightning_idc.synthesis.models.ground import resized
from lightning_idc.synthesis.models.things import ChangedThings

pytest.importorskip("cv2")  # here, since importing it changes the environment

COLORS = {"red": (200, 40, 40), "blue": (40, 60, 200), "green": (30, 160, 50), "purple": (150, 50, 170)}
PLACES = {"red": (20, 24), "blue": (80, 30), "green": (40, 80), "purple": (88, 84)}
SIDE = 18


def scene(shift: tuple[int, int] = (0, 0), light: float = 1.0, **instead: str | None) -> Tensor:
    """Return squares on a grey background that darkens downwards, all shifted and lit by a factor."""
    ground = torch.linspace(150, 110, 128)[None, :, None].expand(3, 128, 128).clone()
    for name, (x, y) in PLACES.items():
        color = instead.get(name, name)
        if color is not None:
            x, y = x + shift[0], y + shift[1]
            ground[:, y : y + SIDE, x : x + SIDE] = torch.tensor(COLORS[color])[:, None, None].float()
    return (ground * light).round().clamp(0, 255).to(torch.uint8)


def box(name: str, shift: tuple[int, int] = (0, 0)) -> tuple[int, ...]:
    x, y = PLACES[name]
    return x + shift[0], y + shift[1], x + shift[0] + SIDE, y + shift[1] + SIDE


def near(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return max(abs(a - b) for a, b in zip(one, other, strict=True)) <= 2


@pytest.mark.parametrize("shift", [(0, 0), (6, -4)])
def test_removed_object_is_detected_despite_light_and_camera(shift: tuple[int, int]) -> None:
    (found,) = ChangedThings().regions([scene()], [scene(shift, 0.75, blue=None)])
    assert len(found) == 1 and found[0].image_index == 0 and near(found[0].box, box("blue"))
    assert found[0].mask is not None and found[0].mask.shape == (128, 128)
    inside = found[0].mask[30 : 30 + SIDE, 80 : 80 + SIDE]
    assert inside.float().mean() > 0.9 and found[0].mask.sum() < 1.3 * SIDE**2
    (found,) = ChangedThings().regions([scene(blue=None)], [scene(shift, 0.75)])
    assert [region.image_index for region in found] == [1] and near(found[0].box, box("blue", shift))


def test_recoloured_object_is_a_region_of_both_images() -> None:
    (found,) = ChangedThings().regions([scene()], [scene((6, -4), 1.2, green="purple")])
    assert sorted(region.image_index for region in found if region.image_index is not None) == [0, 1]
    for region in found:
        assert near(region.box, box("green", (6, -4) if region.image_index else (0, 0)))


@pytest.mark.slow
def test_light_and_camera_alone_give_no_region() -> None:
    for shift, light in (((0, 0), 0.8), ((6, -4), 1.15), ((-5, 5), 0.7)):
        (found,) = ChangedThings().regions([scene()], [scene(shift, light)])
        assert found == []


@pytest.mark.parametrize("light", [0.75, 1.2])
def test_gray_object_is_detected_by_its_outline(light: float) -> None:
    first, second = scene(), scene(light=light)
    for image, factor in ((first, 1.0), (second, light)):  # in both images, so it is not a region
        image[:, 10:28, 60:78] = round(90 * factor)
    first[:, 50:68, 14:32] = 165
    (found,) = ChangedThings().regions([first], [second])
    assert [region.image_index for region in found] == [0] and near(found[0].box, (14, 50, 32, 68))
    (found,) = ChangedThings().regions([second], [first])
    assert [region.image_index for region in found] == [1]


def test_removed_one_of_two_touching_objects_is_detected() -> None:
    first, second = scene(), scene(light=0.8)
    first[:, 30:48, 98:116] = torch.tensor(COLORS["blue"], dtype=torch.uint8)[:, None, None]  # touches the blue one
    (found,) = ChangedThings().regions([first], [second])
    assert [region.image_index for region in found] == [0] and near(found[0].box, (98, 30, 116, 48))


def test_other_images_use_the_fallback() -> None:
    noise = torch.randint(256, (2, 3, 64, 64), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    for before, after in ((noise[0], noise[1]), (scene(), scene(blue=None))):
        (own,), (contours,) = (
            segmenter.regions([before], [after]) for segmenter in (ChangedThings(), DifferenceContours())
        )
        assert [region.box for region in own] == [region.box for region in contours]
    assert ChangedThings().settings()["fallback"]["model"] == "DifferenceContours"
    assert isinstance(DifferenceAreas().segmenter, ChangedThings)


@pytest.mark.parametrize("size", [(427, 640), (34, 1000), (1000, 34)])
def test_boxes_of_a_resized_image_end_at_its_border(size: tuple[int, int]) -> None:
    """The sides of a reduced image are rounded to whole pixels independently of each other."""
    mask = resized(np.ones(size, np.float32), 128) > 0
    assert region_of(mask, size, 1.0).box == (0, 0, size[1], size[0])
