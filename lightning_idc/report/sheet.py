"""Contact sheets: before, after, what was said and what should have been."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from lightning_idc.utils.text import plain

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw
    from PIL.ImageFont import FreeTypeFont, ImageFont

INK, GRAY, GOOD, BAD, PAPER = (28, 28, 30), (112, 112, 118), (24, 128, 56), (190, 40, 30), (255, 255, 255)
FRAME, MARK = (214, 214, 220), (255, 122, 0)
MARGIN, GAP, LINE, SIGN = 20, 6, 20, 16
MOST_LINES = 12
SIZES = (160, 260)
"""Least and greatest height of a picture when none is asked for."""


@dataclass
class Card:
    """One pair on a sheet.

    Args:
        before: uint8 ``(3, H, W)``.
        after: uint8 ``(3, H, W)``.
        title: first line, gray.
        caption: what was said.
        reference: what should have been said.
        right: a green tick, a red cross, or neither when None.
        score: stands opposite the title.
        boxes: changed regions in pixels, ``(N, 2, 4)`` as in `PairSample`.
    """

    before: Tensor
    after: Tensor
    title: str
    caption: str
    reference: str = ""
    right: bool | None = None
    score: str = ""
    boxes: Tensor | None = None


def contact_sheet(
    cards: Sequence[Card], columns: int = 3, image_height: int | None = None, difference: bool = False
) -> Image:
    """Draw cards in rows; small images are enlarged to a legible size, and none is distorted.

    Args:
        cards: at least one.
        columns: cards side by side.
        image_height: pixels; None for the pictures' own, within 160 and 260.
        difference: draw a third picture, twice the absolute difference.
    """
    from PIL import Image, ImageDraw, ImageFont

    small, font = ImageFont.load_default(13), ImageFont.load_default(15)
    sizes = [tuple(card.before.shape[1:]) for card in cards]
    height = image_height or min(max(max(size[0] for size in sizes), SIZES[0]), SIZES[1])
    width = min(max(round(height * size[1] / size[0]) for size in sizes), 2 * height)
    pictures = 3 if difference else 2
    card_width = max(pictures * width + (pictures - 1) * GAP, 220)
    texts = [
        (_wrap(card.caption or "(nothing)", font, card_width - SIGN), _wrap(card.reference, font, card_width - SIGN))
        for card in cards
    ]
    columns = min(columns, len(cards))
    rows = [range(start, min(start + columns, len(cards))) for start in range(0, len(cards), columns)]
    heights = [height + 26 + LINE * max(sum(map(len, texts[i])) for i in row) for row in rows]
    sheet = Image.new(
        "RGB",
        (columns * card_width + (columns + 1) * MARGIN, sum(heights) + (len(rows) + 1) * MARGIN + 12),
        PAPER,
    )
    draw = ImageDraw.Draw(sheet)
    top = MARGIN + 12
    for row, row_height in zip(rows, heights, strict=True):
        for column, index in enumerate(row):
            card, left = cards[index], MARGIN + column * (card_width + MARGIN)
            if index < columns:
                boxed = any(card.boxes is not None and len(card.boxes) for card in cards)
                after = "after (boxes: truth)" if boxed else "after"
                for place, name in enumerate(("before", after, "difference x2")[:pictures]):
                    draw.text((left + place * (width + GAP), top - 19), name, GRAY, small)
            for place, image in enumerate(_pictures(card, height, width, difference)):
                sheet.paste(image, (left + place * (width + GAP), top))
            y = top + height + 5
            free = card_width - small.getlength(card.score) - 10
            draw.text((left, y), _shortened(plain(card.title), small, free), GRAY, small)
            draw.text((left + card_width, y), card.score, GRAY, small, anchor="ra")
            y += LINE
            ink = INK if card.right is None else GOOD if card.right else BAD
            _sign(draw, (left, y), card.right)
            for lines, color in zip(texts[index], (ink, GRAY), strict=True):
                for words in lines:
                    draw.text((left + SIGN, y), words, color, font)
                    y += LINE
        top += row_height + MARGIN
    return sheet


def _pictures(card: Card, height: int, width: int, difference: bool) -> list[Image]:
    sides = [card.before, card.after]
    if difference:
        sides.append(((card.after.short() - card.before.short()).abs() * 2).clamp(max=255).byte())
    return [_picture(image, height, width, card.boxes, side) for side, image in enumerate(sides)]


def _picture(image: Tensor, height: int, width: int, boxes: Tensor | None, side: int) -> Image:
    """The image in the middle of a frame of this size, with its boxes."""
    from PIL import Image, ImageDraw

    scale = min(height / image.shape[1], width / image.shape[2])
    size = max(1, round(image.shape[2] * scale)), max(1, round(image.shape[1] * scale))
    # pixels of a tiny image are its content; blurring them would hide it
    how = (
        Image.Resampling.NEAREST if scale >= 6 else Image.Resampling.BICUBIC if scale > 1 else Image.Resampling.LANCZOS
    )
    frame = Image.new("RGB", (width, height), PAPER)
    left, top = (width - size[0]) // 2, (height - size[1]) // 2
    frame.paste(Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()).resize(size, how), (left, top))
    draw = ImageDraw.Draw(frame)
    draw.rectangle((left, top, left + size[0] - 1, top + size[1] - 1), outline=FRAME)
    for box in [] if boxes is None or side > 1 else boxes[:, side].tolist():
        if all(map(math.isfinite, box)):
            x1, y1, x2, y2 = (value * scale for value in box)
            draw.rectangle((left + min(x1, x2), top + min(y1, y2), left + max(x1, x2), top + max(y1, y2)), outline=MARK)
    return frame


def _sign(draw: ImageDraw, at: tuple[int, int], right: bool | None) -> None:
    """A tick or a cross, so that the colours are not alone in telling."""
    x, y = at[0], at[1] + 4
    if right:
        draw.line([(x, y + 6), (x + 4, y + 10), (x + 10, y + 1)], GOOD, 2)
    elif right is not None:
        draw.line([(x + 1, y + 1), (x + 10, y + 10)], BAD, 2)
        draw.line([(x + 1, y + 10), (x + 10, y + 1)], BAD, 2)


def _wrap(sentence: str, font: FreeTypeFont | ImageFont, width: float) -> list[str]:
    """At most twelve lines of at most ``width`` pixels; a single longer word is cut into pieces."""
    lines: list[str] = []
    current = ""
    words = plain(sentence[:2000]).split()
    while words and len(lines) <= MOST_LINES:
        word = words.pop(0)
        longer = f"{current} {word}".strip()
        if font.getlength(longer) <= width:
            current = longer
        elif current:
            lines.append(current)
            current = ""
            words.insert(0, word)
        else:
            cut = next((n for n in range(len(word), 1, -1) if font.getlength(word[:n]) <= width), 1)
            lines.append(word[:cut])
            words.insert(0, word[cut:])
    lines += [current] if current else []
    if len(lines) > MOST_LINES:
        lines = [*lines[: MOST_LINES - 1], _shortened(lines[MOST_LINES - 1] + " ...", font, width)]
    return lines


def _shortened(text: str, font: FreeTypeFont | ImageFont, width: float) -> str:
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "...") > width:
        text = text[:-1]
    return text + "..."
