"""Relevance maps of patches and words, drawn as in NAMC's Figures 6 to 8."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lightning_idc.data.benchmarks.implicit_change import component_spans
from lightning_idc.methods.namc.dual_encoder import DualEncoder
from lightning_idc.methods.namc.noise import pool_subwords, relevance, token_similarity
from lightning_idc.nn.vocabulary import words_of
from lightning_idc.report.sheet import BAD, GRAY, INK, PAPER
from lightning_idc.utils.text import plain

if TYPE_CHECKING:
    from PIL.Image import Image

BLUE = (20, 70, 200)
MARGIN, GAP, LINE, BAR = 20, 12, 22, 10


@dataclass(slots=True)
class ImageRelevance:
    """Relevance of an image and its description to each other.

    Args:
        words: words of the description.
        of_words: cosine of each word with its best patch.
        of_patches: cosine of each patch with its best word, ``(h, w)``.
        wrong: whether each word is noise; None if unknown.
    """

    words: list[str]
    of_words: list[float]
    of_patches: Tensor
    wrong: list[bool] | None = None


@torch.no_grad()
def compute_relevance(
    encoder: DualEncoder, images: Tensor, caption: str, wrong: Sequence[bool] | None = None
) -> list[ImageRelevance]:
    """Relevance of both images of a pair to their descriptions.

    The descriptions are parts of an implicit-change description; a caption of any other form describes both images.

    Args:
        encoder: dual encoder in evaluation mode.
        images: uint8 ``(2, 3, H, W)``.
        caption: caption of the pair.
        wrong: whether each word of ``words_of(caption)`` is noise; None if unknown.
    """
    words = words_of(caption)
    spans = component_spans(words) or (range(len(words)),) * 2
    texts = [words[span.start : span.stop] for span in spans]
    image = encoder.encode_image(images.to(next(encoder.parameters()).device))
    text = encoder.encode_text(texts)
    similarity = token_similarity(image.patches, text.tokens)  # (2, P, S)
    patch_relevance, token_relevance = relevance(similarity, text.word_of >= 0)  # (2, P), (2, S)
    word_relevance = pool_subwords(token_relevance, text.word_of, max(map(len, texts))).tolist()
    return [
        ImageRelevance(
            words=texts[side],
            of_words=word_relevance[side][: len(texts[side])],
            of_patches=patch_relevance[side].unflatten(0, encoder.grid).cpu(),
            wrong=None if wrong is None else list(wrong[span.start : span.stop]),
        )
        for side, span in enumerate(spans)
    ]


def normalised(values: Tensor) -> Tensor:
    """Values scaled to [0, 1]; 0.5 if all are equal."""
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else torch.full_like(values, 0.5)


def draw_relevance_maps(pairs: Sequence[tuple[Tensor, Sequence[ImageRelevance]]], height: int = 224) -> Image:
    """Draw relevance maps, one pair below the other: overlaid images, and below them the words of the descriptions.

    Relevance is normalised per image and per description, as in the paper. More blue is more relevant. Words that are
    noise are underlined in red.

    Args:
        pairs: for each pair, uint8 images ``(2, 3, H, W)`` and the result of :func:`compute_relevance`.
        height: height of an image in pixels.
    """
    from PIL import Image, ImageDraw, ImageFont

    font, small = ImageFont.load_default(15), ImageFont.load_default(12)
    widths = [round(height * images.shape[-1] / images.shape[-2]) for images, _ in pairs]
    column = max(max(widths), 260)
    rows = [[_lines(side.words, font, column) for side in relevances] for _, relevances in pairs]
    heights = [height + 10 + LINE * max(len(lines) for lines in row) for row in rows]
    sheet = Image.new("RGB", (2 * column + GAP + 2 * MARGIN, sum(heights) + (len(rows) + 1) * MARGIN + LINE), PAPER)
    draw = ImageDraw.Draw(sheet)
    top = MARGIN
    for (images, relevances), row, row_height, width in zip(pairs, rows, heights, widths, strict=True):
        for side, (side_relevance, lines) in enumerate(zip(relevances, row, strict=True)):
            x_start = MARGIN + side * (column + GAP)
            sheet.paste(_overlaid(images[side], side_relevance.of_patches, (width, height)), (x_start, top))
            shades = normalised(torch.tensor(side_relevance.of_words)).tolist() if side_relevance.of_words else []
            y = top + height + 6
            for line in lines:
                x: float = x_start
                for index in line:
                    word = plain(side_relevance.words[index])
                    length = font.getlength(word)
                    draw.rectangle((x - 2, y, x + length + 2, y + LINE - 4), _shade(shades[index]))
                    draw.text((x, y), word, PAPER if shades[index] > 0.6 else INK, font)
                    if side_relevance.wrong is not None and side_relevance.wrong[index]:
                        draw.line((x, y + LINE - 3, x + length, y + LINE - 3), BAD, 2)
                    x += length + 7
                y += LINE
        top += row_height + MARGIN
    _bar(sheet, top - MARGIN // 2, column, small)
    return sheet


def _lines(words: Sequence[str], font: object, width: float) -> list[list[int]]:
    """Break words into lines of a maximum width: indices of the words of each line."""
    lines: list[list[int]] = [[]]
    x = 0.0
    for index, word in enumerate(words):
        length = font.getlength(plain(word)) + 7  # type: ignore[attr-defined]
        if lines[-1] and x + length > width:
            lines.append([])
            x = 0.0
        lines[-1].append(index)
        x += length
    return lines


def _shade(value: float) -> tuple[int, int, int]:
    red, green, blue = (round(p + (b - p) * value) for p, b in zip(PAPER, BLUE, strict=True))
    return red, green, blue


def _overlaid(image: Tensor, patches: Tensor, size: tuple[int, int]) -> Image:
    from PIL import Image

    resized = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()).resize(size, Image.Resampling.BICUBIC)
    shade = (normalised(patches) * 200).round().byte().contiguous().numpy()
    heat = Image.fromarray(shade, "L").resize(size, Image.Resampling.BICUBIC)
    return Image.composite(Image.new("RGB", size, BLUE), resized, heat)


def _bar(sheet: Image, top: int, width: int, font: object) -> None:
    from PIL import ImageDraw

    draw = ImageDraw.Draw(sheet)
    for x in range(width):
        draw.line((MARGIN + x, top, MARGIN + x, top + BAR), _shade(x / (width - 1)))
    for value in (0.0, 0.5, 1.0):
        draw.text((MARGIN + value * width, top + BAR + 1), f"{value:g}", GRAY, font, anchor="ma")  # type: ignore[arg-type]
    draw.text((MARGIN + width + GAP, top - 2), "normalised relevance", GRAY, font)  # type: ignore[arg-type]
