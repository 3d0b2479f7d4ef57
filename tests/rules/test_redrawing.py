"""Text drawn by another font rasteriser is noise if all of it is redrawn, however small its share of the page."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from lightning_idc.rules.noise import noise_of

WIDTH, HEIGHT = 320, 240


def typeset(
    scale: int = 1, size: int = 11, text: str = "the quick brown fox", bold: int = 0, color: str = "black"
) -> Image.Image:
    """Lines of letters at the same positions for each scale; letters drawn at a large scale are not hinted."""
    font = ImageFont.load_default(size * scale)
    image = Image.new("RGB", (WIDTH * scale, HEIGHT * scale), "white")
    draw = ImageDraw.Draw(image)
    advance, height = round(0.8 * size), round(1.4 * size)
    for line in range(HEIGHT // height):
        for index, letter in enumerate((text * 2)[: 300 // advance]):
            position = ((10 + advance * index) * scale, (height * line + size + 3) * scale)
            draw.text(position, letter, color, font=font, anchor="ls", stroke_width=bold * scale)
    return image.resize((WIDTH, HEIGHT), Image.Resampling.BOX)


def with_heading(scale: int = 1) -> Image.Image:
    """Text below one line of large bold letters, whose strokes hinting widens by a pixel."""
    image = typeset(scale, size=13)
    image.paste(typeset(scale, size=18, bold=1).crop((0, 0, WIDTH, 24)), (0, 0))
    return image


def cut_by_the_edge(image: Image.Image) -> Image.Image:
    """A view that begins in the middle of a line of text."""
    return image.crop((0, 12, WIDTH, HEIGHT))


def mostly_empty(image: Image.Image) -> Image.Image:
    """A page with two lines of text."""
    result = Image.new("RGB", (WIDTH, HEIGHT), "white")
    result.paste(image.crop((0, 0, WIDTH, 40)), (0, 0))
    return result


def with_second_line(image: Image.Image, line: Image.Image, right: int = 0) -> Image.Image:
    """A page whose second line, of letters of size 13, comes from another page and is moved to the right."""
    image.paste(line.crop((0, 22, WIDTH - right, 40)), (right, 22))
    return image


def on_a_gradient(image: Image.Image) -> Image.Image:
    """A page whose background darkens downwards, so that text looks different in each row."""
    ground = 255 - np.arange(HEIGHT)[:, None, None] // 3
    return Image.fromarray(np.clip(np.array(image).astype(int) + ground - 255, 0, 255).astype(np.uint8))


def moved_down(image: Image.Image) -> Image.Image:
    """A page whose content is one pixel lower."""
    return Image.fromarray(np.roll(np.array(image), 1, axis=0))


def below_photo(image: Image.Image) -> Image.Image:
    """A page with little text; the rest is a photo, which is equal in both captures."""
    photo = np.random.default_rng(1).integers(0, 256, (840, 2 * WIDTH, 3)).astype(np.uint8)
    result = Image.fromarray(photo)
    result.paste(image, (0, 0))
    return result


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (below_photo(typeset(size=13)), below_photo(typeset(scale=8, size=13))),
        (typeset(size=16, bold=1), typeset(scale=8, size=16, bold=1)),
        (with_heading(), with_heading(scale=8)),
        (cut_by_the_edge(typeset(size=13)), cut_by_the_edge(typeset(scale=8, size=13))),
        (mostly_empty(typeset()), mostly_empty(typeset(scale=8))),
    ],
    ids=["next to a photo", "bold letters", "a heading", "a line cut by the edge", "a page with two lines"],
)
def test_text_that_is_drawn_anew_in_its_place_is_noise(before: Image.Image, after: Image.Image) -> None:
    assert noise(before, after) == "another font rasteriser"


@pytest.mark.parametrize(
    "after",
    [
        with_second_line(typeset(scale=8, size=13), typeset(scale=8, size=13), right=1),
        with_second_line(typeset(scale=8, size=13), typeset(scale=8, size=13, color="#606060")),
        with_second_line(typeset(scale=8, size=13), typeset(scale=8, size=13, color="#c00000")),
        with_second_line(typeset(scale=8, size=13), typeset(scale=8, size=13, text="jumps over lazy dog")),
    ],
    ids=["moved by a pixel", "paler", "red", "another text"],
)
def test_a_line_that_changes_where_all_text_is_drawn_anew_is_a_change(after: Image.Image) -> None:
    assert noise(typeset(size=13), after) is None


def test_text_that_moves_on_a_gradient_is_a_change() -> None:
    page = typeset(size=13)
    assert noise(on_a_gradient(page), on_a_gradient(moved_down(page))) is None


def on_shades(top: int, shade: int = 0) -> np.ndarray:
    """A page with text on its bright half, and with a dark half; both halves darken downwards."""
    rows, columns = np.mgrid[:480, :640]
    ground = np.where(columns < 320, 60, 230) - ((rows - np.where(columns < 320, shade, -shade)) * 0.2).astype(int)
    text = np.full((480, 640), 255)
    text[top : top + 100, 320:] = np.asarray(typeset(size=13).convert("L"))[:100]
    return np.repeat(np.minimum(text, ground).clip(0, 255).astype(np.uint8)[None], 3, 0)


def test_text_that_moves_far_is_no_encoding_although_all_of_its_ground_differs_a_little() -> None:
    """The background differs nearly everywhere, so text is only a small part of the pixels that differ."""
    assert noise_of(on_shades(10), on_shades(67, shade=11)) is None


def noise(before: Image.Image, after: Image.Image) -> str | None:
    first, second = (np.array(image).transpose(2, 0, 1) for image in (before, after))
    return noise_of(first, second, lossless=True)


@pytest.mark.parametrize(("share", "expected"), [(0.2, "another font rasteriser"), (0.0, None)])
def test_strokes_may_become_darker_if_some_of_their_pixels_become_lighter(share: float, expected: str | None) -> None:
    """Sharper strokes have darker and lighter pixels; text of another color, or with more gamma, only darker ones."""
    soft, sharp = (np.asarray(typeset(scale, size=13), float).transpose(2, 0, 1) for scale in (8, 1))
    darker = 255 - 255 * ((255 - soft) / 255) ** 0.8
    after = np.clip(darker + share * (sharp - soft), 0, 255)
    assert noise_of(soft.astype(np.uint8), after.astype(np.uint8), lossless=True) == expected
