"""Contact sheets: before, after, what was said and what should have been."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFont import FreeTypeFont

INK, GRAY, GOOD, BAD, PAPER = (28, 28, 30), (120, 120, 126), (24, 128, 56), (190, 40, 30), (255, 255, 255)


@dataclass
class Card:
    """One pair on a sheet.

    Args:
        before: uint8 ``(3, H, W)``.
        after: uint8 ``(3, H, W)``.
        title: first line, gray.
        caption: what was said.
        reference: what should have been said.
        right: colour of the caption: green, red, or black when None.
    """

    before: Tensor
    after: Tensor
    title: str
    caption: str
    reference: str
    right: bool | None = None


def contact_sheet(cards: Sequence[Card], columns: int = 3, image_height: int = 150) -> Image:
    """Draw cards in rows; small images are enlarged to a legible height."""
    from PIL import Image, ImageDraw, ImageFont

    small = ImageFont.load_default(13)
    text = ImageFont.load_default(15)
    shapes = [card.before.shape for card in cards]
    image_width = max(round(image_height * shape[2] / shape[1]) for shape in shapes)
    margin, gap = 18, 6
    card_width = 2 * image_width + gap
    wrapped = [
        (_wrap(card.caption or "(nothing)", text, card_width), _wrap(card.reference, text, card_width))
        for card in cards
    ]
    line = 20
    rows = [range(start, min(start + columns, len(cards))) for start in range(0, len(cards), columns)]
    heights = [
        image_height + 26 + line * max(len(wrapped[i][0]) + len(wrapped[i][1]) for i in row) + 14 for row in rows
    ]
    width = columns * card_width + (columns + 1) * margin
    sheet = Image.new("RGB", (width, sum(heights) + (len(rows) + 1) * margin), PAPER)
    draw = ImageDraw.Draw(sheet)
    top = margin
    for row, height in zip(rows, heights, strict=True):
        for column, index in enumerate(row):
            card, left = cards[index], margin + column * (card_width + margin)
            for side, image in enumerate((card.before, card.after)):
                picture = Image.fromarray(image.permute(1, 2, 0).numpy())
                enlarged = picture.resize((image_width, image_height), Image.Resampling.LANCZOS)
                sheet.paste(enlarged, (left + side * (image_width + gap), top))
            y = top + image_height + 5
            draw.text((left, y), card.title, GRAY, small)
            y += line
            colour = INK if card.right is None else GOOD if card.right else BAD
            for lines, ink in ((wrapped[index][0], colour), (wrapped[index][1], GRAY)):
                for words in lines:
                    draw.text((left, y), words, ink, text)
                    y += line
        top += height + margin
    return sheet


def _wrap(sentence: str, font: FreeTypeFont | object, width: int) -> list[str]:
    """Lines of at most ``width`` pixels; a single longer word is cut into pieces."""
    lines: list[str] = []
    current = ""
    for word in sentence.split():
        longer = f"{current} {word}".strip()
        if font.getlength(longer) <= width:  # type: ignore[union-attr]
            current = longer
            continue
        if current:
            lines.append(current)
        while font.getlength(word) > width and len(word) > 1:  # type: ignore[union-attr]
            cut = max(1, int(len(word) * width / font.getlength(word)))  # type: ignore[union-attr]
            lines.append(word[:cut])
            word = word[cut:]
        current = word
    return [*lines, current] if current else lines or [""]
