"""contact_sheet: one image of several pairs with their captions and references."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from lightning_idc.images.display import to_pil
from lightning_idc.utils.text import plain

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw
    from PIL.ImageFont import FreeTypeFont, ImageFont

INK, GRAY, GOOD, BAD, PAPER = (28, 28, 30), (112, 112, 118), (24, 128, 56), (190, 40, 30), (255, 255, 255)
FRAME, MARK = (214, 214, 220), (255, 122, 0)
MARGIN, GAP, LINE, SIGN = 20, 6, 20, 16
MAX_LINES = 12
SIZES = (160, 260)
"""Minimum and maximum default height of an image in pixels."""


@dataclass
class Card:
    """One pair on a sheet.

    Args:
        before: uint8 ``(3, H, W)``.
        after: uint8 ``(3, H, W)``.
        title: first line, gray.
        caption: predicted caption.
        reference: reference caption.
        right: whether the caption is right: True draws a green tick, False a red cross, None nothing.
        score: text on the right of the title.
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


def contact_sheet(cards: Sequence[Card], columns: int = 3, image_height: int | None = None) -> Image:
    """Draw cards in rows; small images are enlarged, and aspect ratios are preserved.

    Args:
        cards: at least one card.
        columns: number of cards per row.
        image_height: height of an image in pixels; that of the images, limited to 160 to 260, when None.
    """
    from PIL import Image, ImageDraw, ImageFont

    small, font = ImageFont.load_default(13), ImageFont.load_default(15)
    sizes = [tuple(card.before.shape[1:]) for card in cards]
    height = image_height or min(max(max(size[0] for size in sizes), SIZES[0]), SIZES[1])
    width = min(max(round(height * size[1] / size[0]) for size in sizes), 2 * height)
    card_width = max(2 * width + GAP, 220)
    texts = [_lines(card, font, card_width - SIGN) for card in cards]
    columns = min(columns, len(cards))
    rows = [range(start, min(start + columns, len(cards))) for start in range(0, len(cards), columns)]
    heights = [height + 26 + LINE * max(len(texts[index]) for index in row) for row in rows]
    size = columns * card_width + (columns + 1) * MARGIN, sum(heights) + (len(rows) + 1) * MARGIN + 12
    sheet = Image.new("RGB", size, PAPER)
    draw = ImageDraw.Draw(sheet)
    has_boxes = any(card.boxes is not None and len(card.boxes) for card in cards)
    top = MARGIN + 12
    for row, row_height in zip(rows, heights, strict=True):
        for column, index in enumerate(row):
            card, left = cards[index], MARGIN + column * (card_width + MARGIN)
            for side, image in enumerate((card.before, card.after)):
                x = left + side * (width + GAP)
                sheet.paste(_framed_image(image, height, width, card.boxes, side), (x, top))
                if index < columns:
                    name = "before" if side == 0 else "after (boxes: ground truth)" if has_boxes else "after"
                    draw.text((x, top - 19), name, GRAY, small)
            y = top + height + 5
            free = card_width - small.getlength(card.score) - 10
            draw.text((left, y), _shortened(plain(card.title), small, free), GRAY, small)
            draw.text((left + card_width, y), card.score, GRAY, small, anchor="ra")
            _draw_mark(draw, (left, y + LINE), card.right)
            for number, (line, color) in enumerate(texts[index], 1):
                draw.text((left + SIGN, y + number * LINE), line, color, font)
        top += row_height + MARGIN
    return sheet


def _lines(card: Card, font: FreeTypeFont | ImageFont, width: float) -> list[tuple[str, tuple[int, int, int]]]:
    """Lines of caption and reference with their colours."""
    ink = INK if card.right is None else GOOD if card.right else BAD
    texts = (card.caption or "(empty)", ink), (card.reference, GRAY)
    return [(line, color) for text, color in texts for line in _wrap(text, font, width)]


def _framed_image(image: Tensor, height: int, width: int, boxes: Tensor | None, side: int) -> Image:
    """Image centred in a frame of ``height`` by ``width`` pixels, with its boxes."""
    from PIL import Image, ImageDraw

    scale = min(height / image.shape[1], width / image.shape[2])
    size = max(1, round(image.shape[2] * scale)), max(1, round(image.shape[1] * scale))
    # the pixels of a tiny image must stay visible, so they are not interpolated
    resampling = (
        Image.Resampling.NEAREST if scale >= 6 else Image.Resampling.BICUBIC if scale > 1 else Image.Resampling.LANCZOS
    )
    frame = Image.new("RGB", (width, height), PAPER)
    left, top = (width - size[0]) // 2, (height - size[1]) // 2
    frame.paste(to_pil(image).resize(size, resampling), (left, top))
    draw = ImageDraw.Draw(frame)
    draw.rectangle((left, top, left + size[0] - 1, top + size[1] - 1), outline=FRAME)
    for box in [] if boxes is None else boxes[:, side].tolist():
        if all(map(math.isfinite, box)):
            x1, y1, x2, y2 = (value * scale for value in box)
            draw.rectangle((left + min(x1, x2), top + min(y1, y2), left + max(x1, x2), top + max(y1, y2)), outline=MARK)
    return frame


def _draw_mark(draw: ImageDraw, at: tuple[int, int], right: bool | None) -> None:
    """Draw a tick or a cross, so that correctness does not depend on colours alone."""
    x, y = at[0], at[1] + 4
    if right:
        draw.line([(x, y + 6), (x + 4, y + 10), (x + 10, y + 1)], GOOD, 2)
    elif right is not None:
        draw.line([(x + 1, y + 1), (x + 10, y + 10)], BAD, 2)
        draw.line([(x + 1, y + 10), (x + 10, y + 1)], BAD, 2)


def _wrap(sentence: str, font: FreeTypeFont | ImageFont, width: float) -> list[str]:
    """Wrap a sentence to at most `MAX_LINES` lines of ``width`` pixels; longer words are split."""
    lines: list[str] = []
    words = plain(sentence[:2000]).split()
    while words and len(lines) <= MAX_LINES:
        word = words.pop(0)
        if lines and font.getlength(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
            continue
        fitting = next((n for n in range(len(word), 1, -1) if font.getlength(word[:n]) <= width), 1)
        lines.append(word[:fitting])
        if fitting < len(word):
            words.insert(0, word[fitting:])
    if len(lines) > MAX_LINES:
        lines = [*lines[: MAX_LINES - 1], _shortened(lines[MAX_LINES - 1] + " ...", font, width)]
    return lines


def _shortened(text: str, font: FreeTypeFont | ImageFont, width: float) -> str:
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "...") > width:
        text = text[:-1]
    return text + "..."
