"""Scrolled views: content that moves by a pixel under fixed parts is noise, content moved by an element is not."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageDraw

from lightning_idc.rules.noise import noise_of

WIDTH, HEIGHT = 320, 240


def page(top: int = 0) -> Image.Image:
    """Lines of text with a coloured box each, scrolled down by ``top`` pixels."""
    image = Image.new("RGB", (WIDTH, HEIGHT), "white")
    draw = ImageDraw.Draw(image)
    for line in range(20):
        draw.text((10, 16 * line - top), f"Line {line}: the quick brown fox jumps over it", "black")
        draw.rectangle((280, 16 * line - top, 300, 16 * line - top + 9), fill=(9 * line, 80, 160))
    return image


def narrow(top: int = 0) -> Image.Image:
    """A page whose content takes less than half of the width."""
    image = Image.new("RGB", (2 * WIDTH + 80, HEIGHT), "white")
    image.paste(page(top), (200, 0))
    return image


def with_side_bar(top: int = 0, left: int = 0) -> Image.Image:
    """A page that is scrolled down and to the right next to a fixed side bar."""
    image = Image.new("RGB", (WIDTH + 160, HEIGHT), "white")
    image.paste(page(top), (140 - left, 0))
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 0, 99, HEIGHT), fill="navy")
    for line in range(6):
        draw.text((10, 30 * line + 20), f"Section {line}", "white")
    return image


def under_shadow(top: int) -> Image.Image:
    """A page that is scrolled under a header whose shadow darkens the first lines of the content."""
    image = page(top)
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 0, WIDTH, 39), fill="navy")
    draw.text((10, 12), "A header that stays", "white")
    for line in range(8):
        row = image.crop((0, 40 + line, WIDTH, 41 + line))
        image.paste(Image.blend(row, Image.new("RGB", row.size), 0.04 * (8 - line)), (0, 40 + line))
    return image


@pytest.mark.parametrize(
    ("before", "after", "shift"),
    [
        (narrow(), narrow(1), (0, -1)),
        (with_side_bar(), with_side_bar(1), (0, -1)),
        (with_side_bar(2), with_side_bar(), (0, 2)),
        (with_side_bar(), with_side_bar(left=1), (-1, 0)),
        (under_shadow(12), under_shadow(13), (0, -1)),
    ],
    ids=["narrow content", "down at a side bar", "up at a side bar", "sideways at a side bar", "under a shadow"],
)
def test_a_view_that_moves_under_fixed_parts_is_scrolled(
    before: Image.Image, after: Image.Image, shift: tuple[int, int]
) -> None:
    assert noise(before, after) == f"the view scrolled by {shift[0]}, {shift[1]} pixels"


def resized_box(width: int) -> Image.Image:
    """A page in a bordered box; its left edge and text move, and its right edge stays."""
    image = Image.new("RGB", (WIDTH, HEIGHT), "white")
    image.paste(page().crop((0, 0, 260, HEIGHT)), (310 - width, 0))
    ImageDraw.Draw(image).rectangle((310 - width, -1, 310, HEIGHT), outline="black")
    return image


def with_moved_part(by: int) -> Image.Image:
    """A page whose part between two lines is moved down."""
    image = page()
    image.paste("white", (0, 32, WIDTH, 208))
    image.paste(page().crop((0, 48, WIDTH, 190)), (0, 48 + by))
    return image


def with_another_word(image: Image.Image, at: tuple[int, int]) -> Image.Image:
    draw = ImageDraw.Draw(image)
    draw.rectangle((*at, at[0] + 50, at[1] + 12), fill=image.getpixel(at))
    draw.text(at, "Another", "gray")
    return image


def paler(image: Image.Image, box: tuple[int, int, int, int]) -> Image.Image:
    part = image.crop(box)
    image.paste(Image.blend(part, Image.new("RGB", part.size, "white"), 0.05), box)
    return image


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (resized_box(300), resized_box(301)),
        (with_moved_part(0), with_moved_part(1)),
        (with_side_bar(), paler(with_side_bar(1), (150, 120, 300, 200))),
        (with_side_bar(), with_another_word(with_side_bar(1), (10, 50))),
        (with_side_bar(), with_another_word(with_side_bar(1), (150, 50))),
    ],
    ids=["padding at the left", "a large part alone", "a paler paragraph", "a word of the side bar", "a word"],
)
def test_what_an_element_moves_or_changes_is_no_scrolling(before: Image.Image, after: Image.Image) -> None:
    assert noise(before, after) is None and noise(after, before) is None


def noise(before: Image.Image, after: Image.Image) -> str | None:
    first, second = (np.array(image).transpose(2, 0, 1) for image in (before, after))
    return noise_of(first, second, lossless=True)
