"""Text that another font rasteriser drew: noise where all of it is, however little of the page it takes."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from lightning_idc.rules.noise import noise_of

WIDTH, HEIGHT = 320, 240


def typeset(scale: int = 1, size: int = 11, text: str = "the quick brown fox", bold: int = 0) -> Image.Image:
    """Lines of letters that stand at the same positions at each scale; those of a large one are not hinted."""
    font = ImageFont.load_default(size * scale)
    image = Image.new("RGB", (WIDTH * scale, HEIGHT * scale), "white")
    draw = ImageDraw.Draw(image)
    advance, height = round(0.8 * size), round(1.4 * size)
    for line in range(HEIGHT // height):
        for index, letter in enumerate((text * 2)[: 300 // advance]):
            position = ((10 + advance * index) * scale, (height * line + size + 3) * scale)
            draw.text(position, letter, "black", font=font, anchor="ls", stroke_width=bold * scale)
    return image.resize((WIDTH, HEIGHT), Image.Resampling.BOX)


def with_heading(scale: int = 1) -> Image.Image:
    """Text below one line of large bold letters, whose strokes hinting widens by a pixel."""
    image = typeset(scale, size=13)
    image.paste(typeset(scale, size=18, bold=1).crop((0, 0, WIDTH, 24)), (0, 0))
    return image


def below_photo(image: Image.Image) -> Image.Image:
    """A page whose text is a small part of it: the rest is a photo, equal in both captures."""
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
    ],
    ids=["next to a photo", "bold letters", "a heading"],
)
def test_text_that_is_drawn_anew_in_its_place_is_noise(before: Image.Image, after: Image.Image) -> None:
    assert noise(before, after) == "another font rasteriser"


def test_another_word_in_text_that_is_drawn_anew_is_a_change() -> None:
    after = typeset(scale=8, size=16)
    after.paste(typeset(scale=8, size=16, text="jumps over lazy dog").crop((0, 44, WIDTH, 66)), (0, 44))
    assert noise(typeset(size=16), after) is None


def noise(before: Image.Image, after: Image.Image) -> str | None:
    first, second = (np.array(image).transpose(2, 0, 1) for image in (before, after))
    return noise_of(first, second, lossless=True)
