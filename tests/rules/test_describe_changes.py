"""describe_changes on small images whose change is known."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from lightning_idc import sample_pair
from lightning_idc.metrics.no_change import says_nothing_changed
from lightning_idc.rules import Description, describe_changes
from lightning_idc.rules.alignment import Motion, warp
from lightning_idc.utils.errors import DataError

SIZE = 160
RED, BLUE, GREEN = (210, 30, 30), (30, 40, 210), (30, 160, 50)


def scene(*discs: tuple[int, int, int, tuple[int, int, int]], seed: int = 0) -> Image.Image:
    """A smoothly shaded background with a fixed square, and discs given by x, y, radius and colour."""
    y, x = np.mgrid[:SIZE, :SIZE]
    ground = np.stack([150 + x / 8, 160 + y / 8, 150 + (x + y) / 16], -1).astype(np.uint8)
    picture = Image.fromarray(ground)
    draw = ImageDraw.Draw(picture)
    draw.rectangle((12, 110, 40, 140), fill=(70, 70, 60), outline=(20, 20, 20))
    draw.line((100, 150, 155, 100), fill=(40, 60, 40), width=3)
    for left, top, radius, colour in discs:
        draw.ellipse((left - radius, top - radius, left + radius, top + radius), fill=colour, outline=(20, 20, 20))
    return picture


def photograph() -> Image.Image:
    """An image with fine texture everywhere, like a photograph."""
    random = np.random.default_rng(1)
    coarse = random.uniform(40, 215, (3, 20, 20))
    fine = coarse.repeat(8, 1).repeat(8, 2) + random.normal(0, 12, (3, SIZE, SIZE))
    return Image.fromarray(fine.clip(0, 255).astype(np.uint8).transpose(1, 2, 0))


def encoded(picture: Image.Image, kind: str = "PNG", **options: int) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, kind, **options)
    return stream.getvalue()


def kinds(answer: Description) -> list[str]:
    return [region.kind for region in answer.regions]


def inside(box: tuple[int, int, int, int], x: int, y: int) -> bool:
    return box[0] <= x < box[2] and box[1] <= y < box[3]


def test_equal_images() -> None:
    answer = describe_changes(scene((120, 40, 14, RED)), scene((120, 40, 14, RED)))
    assert not answer.changed and answer.regions == () and answer.sentence == "Nothing changed."


def test_an_added_object() -> None:
    answer = describe_changes(scene(), scene((120, 40, 14, RED)))
    assert kinds(answer) == ["added"] and inside(answer.regions[0].box, 120, 40)
    assert answer.sentence == "A red object was added in the upper right."


def test_a_removed_object() -> None:
    answer = describe_changes(scene((80, 80, 14, GREEN)), scene())
    assert kinds(answer) == ["removed"]
    assert answer.sentence == "A green object was removed from the centre."


@pytest.mark.parametrize("shift", [(12, -7), (60, 5), (-8, 0)])
def test_a_moved_object(shift: tuple[int, int]) -> None:
    """The object moves a short way, so that both positions overlap, or a long way."""
    answer = describe_changes(scene((80, 60, 16, BLUE)), scene((80 + shift[0], 60 + shift[1], 16, BLUE)))
    assert kinds(answer) == ["moved"]
    region = answer.regions[0]
    assert region.shift is not None and np.abs(np.subtract(region.shift, shift)).max() <= 1


def test_the_direction_of_a_movement_in_words() -> None:
    answer = describe_changes(scene((80, 60, 16, BLUE)), scene((92, 53, 16, BLUE)))
    assert answer.sentence.endswith("moved by 12 pixels to the right and 7 pixels up.")


def test_another_colour() -> None:
    def textured(colour: tuple[int, int, int]) -> Image.Image:
        picture = scene((80, 80, 24, colour))
        draw = ImageDraw.Draw(picture)
        for x in range(66, 96, 6):
            draw.line((x, 70, x, 90), fill=tuple(value // 2 for value in colour))
        return picture

    answer = describe_changes(textured(RED), textured(BLUE))
    assert kinds(answer) == ["recoloured"] and answer.regions[0].colours == ("red", "blue")
    assert answer.sentence == "The region in the centre changed colour from red to blue."


def test_another_text() -> None:
    def page(text: str) -> Image.Image:
        picture = Image.new("RGB", (SIZE, SIZE), "white")
        draw = ImageDraw.Draw(picture)
        draw.text((20, 20), "Annual report", fill="black")
        draw.text((20, 70), text, fill="black")
        return picture

    answer = describe_changes(page("Total 1,250"), page("Sum of 98,64"))
    assert set(kinds(answer)) == {"text"}
    assert answer.regions[0].box[1] >= 66
    assert not describe_changes(encoded(page("Total")), encoded(page("Total"), "JPEG", quality=90)).changed


def test_two_changes() -> None:
    answer = describe_changes(scene((30, 30, 12, RED)), scene((130, 80, 14, BLUE)))
    assert sorted(kinds(answer)) == ["added", "removed"]
    assert " and " in answer.sentence


@pytest.mark.parametrize("quality", [95, 85, 70])
def test_jpeg_is_no_change(quality: int) -> None:
    for picture in (photograph(), scene((80, 80, 20, RED))):
        assert not describe_changes(encoded(picture), encoded(picture, "JPEG", quality=quality)).changed


def test_a_pair_that_cannot_be_compared_is_named() -> None:
    with pytest.warns(UserWarning, match="differ nearly everywhere, as with another camera or light"):
        describe_changes(*sample_pair("clevr"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        describe_changes(*sample_pair("pcb"))


def test_noise_is_no_change() -> None:
    random = np.random.default_rng(0)
    clean = np.asarray(scene((80, 80, 20, RED))).transpose(2, 0, 1)
    noisy = (clean + random.normal(0, 5, clean.shape)).clip(0, 255).astype(np.uint8)
    assert not describe_changes(clean, noisy).changed


def test_change_below_noise_is_detected() -> None:
    answer = describe_changes(encoded(scene()), encoded(scene((120, 40, 14, RED)), "JPEG", quality=75))
    assert kinds(answer) == ["added"]


@pytest.mark.parametrize("shift", [(0, 1), (3, -2)])
def test_a_shifted_view_is_no_change(shift: tuple[int, int]) -> None:
    large = np.asarray(photograph()).transpose(2, 0, 1)
    dx, dy = shift
    first = large[:, 8:-8, 8:-8]
    second = large[:, 8 - dy : SIZE - 8 - dy, 8 - dx : SIZE - 8 - dx]
    answer = describe_changes(first, second)
    assert not answer.changed
    assert answer.shift is not None and np.abs(np.subtract(answer.shift, shift)).max() < 0.2
    assert says_nothing_changed(answer.sentence)
    assert "The view shifted by" in answer.sentence


def test_region_of_a_shifted_view_is_in_before_pixels() -> None:
    picture = photograph()
    other = picture.copy()
    ImageDraw.Draw(other).ellipse((70, 60, 100, 90), fill=RED)
    first = np.asarray(picture).transpose(2, 0, 1)[:, 8:-8, 8:-8]
    second = np.asarray(other).transpose(2, 0, 1)[:, 2:-14, 8:-8]
    answer = describe_changes(first, second)
    assert kinds(answer) == ["added"]
    assert np.abs(np.subtract(answer.regions[0].box, (62, 52, 92, 82))).max() <= 4


def test_box_of_a_view_that_is_turned_and_larger() -> None:
    """Oracle: the box of the warped square, mapped back, contains the square and is larger only by the rotation."""
    square = np.zeros((1, SIZE, SIZE), np.float32)
    square[:, 110:135, 20:50] = 1
    motion = Motion(np.array([[-0.08, 0.03, 4.0], [-0.03, -0.08, -6.0]]), ((SIZE - 1) / 2, (SIZE - 1) / 2))
    rows, columns = np.nonzero(warp(square, motion)[0][0] > 0.5)
    left, top, right, bottom = motion.box_before((columns.min(), rows.min(), columns.max() + 1, rows.max() + 1))
    assert 20 - 3 <= left <= 21 and 110 - 3 <= top <= 111 and 49 <= right <= 50 + 3 and 134 <= bottom <= 135 + 3


@pytest.mark.parametrize("factor", [1.1, 0.85])
def test_another_brightness_is_no_change(factor: float) -> None:
    for picture in (photograph(), scene((80, 80, 20, RED))):
        before = np.asarray(picture).transpose(2, 0, 1)
        after = (before * factor).clip(0, 255).astype(np.uint8)
        answer = describe_changes(before, after)
        assert not answer.changed
        assert abs(answer.brightness - factor) < 0.03
        assert ("stronger" if factor > 1 else "weaker") in answer.sentence
        assert says_nothing_changed(answer.sentence)


def test_opacity_is_composited_on_white() -> None:
    before = scene().convert("RGBA")
    after = scene().convert("RGBA")
    ImageDraw.Draw(after).rectangle((60, 60, 90, 90), fill=(0, 0, 0, 0))
    answer = describe_changes(encoded(before), encoded(after))
    assert answer.changed and inside(answer.regions[0].box, 75, 75)
    assert not describe_changes(encoded(before), encoded(before)).changed


def test_sixteen_bits() -> None:
    before = np.asarray(scene().convert("L")).astype(np.uint16) * 200
    after = before.copy()
    after[30:50, 100:130] = 9000
    files = [encoded(Image.fromarray(values)) for values in (before, after)]
    assert describe_changes(*files).regions[0].box == (100, 30, 130, 50)
    assert not describe_changes(files[0], files[0]).changed


def test_unequal_sizes() -> None:
    small = scene().resize((120, 120))
    with pytest.raises(DataError, match="before is 160x160 and after is 120x120 pixels"):
        describe_changes(scene(), small)
    assert not describe_changes(scene(), small, resize=True).changed


def test_what_is_not_an_image() -> None:
    with pytest.raises(DataError, match="the before image is of type int; expected a path"):
        describe_changes(3, scene())
    with pytest.raises(DataError, match="expected uint8"):
        describe_changes(np.zeros((3, 20, 20)), scene())
    with pytest.raises(DataError, match="no such image file"):
        describe_changes("missing.png", scene())


def test_paths_and_plain_values(tmp_path: Path) -> None:
    files = [tmp_path / "before.png", tmp_path / "after.png"]
    scene().save(files[0])
    scene((120, 40, 14, RED)).save(files[1])
    values = json.loads(json.dumps(describe_changes(*files).to_dict()))
    assert values["changed"] is True and values["size"] == [SIZE, SIZE]
    assert values["regions"][0]["kind"] == "added" and values["sentence"].startswith("A red object")
    assert values == describe_changes(str(files[0]), files[1].read_bytes()).to_dict()


@pytest.mark.parametrize("size", [(1, 1), (3, 40), (17, 9)])
def test_tiny_images(size: tuple[int, int]) -> None:
    before = np.zeros((3, *size), np.uint8)
    assert not describe_changes(before, before).changed
    describe_changes(before, np.full_like(before, 255))


def test_unrelated_image() -> None:
    answer = describe_changes(photograph(), scene((80, 80, 30, RED)))
    assert answer.changed


@pytest.mark.slow
def test_neither_torch_nor_lightning_is_imported() -> None:
    code = (
        "import sys, numpy as np\nfrom lightning_idc.rules import describe_changes\n"
        "a = np.zeros((3, 64, 64), np.uint8); b = a.copy(); b[:, 20:40, 20:40] = 255\n"
        "assert describe_changes(a, b).changed\n"
        "assert not {'torch', 'lightning', 'pandas'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
