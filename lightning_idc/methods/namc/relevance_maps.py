"""Relevance maps: which patches and words of a pair belong together, drawn as in NAMC's Figures 6 to 8."""

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
class Judged:
    """Relevance of one image and its description to each other.

    Args:
        words: of the description.
        of_words: cosine of each word with its best patch.
        of_patches: cosine of each patch with its best word, ``(h, w)``.
        wrong: words that are known to be noise; None where nothing is known.
    """

    words: list[str]
    of_words: list[float]
    of_patches: Tensor
    wrong: list[bool] | None = None


@torch.no_grad()
def judge(encoder: DualEncoder, images: Tensor, caption: str, wrong: Sequence[bool] | None = None) -> list[Judged]:
    """Relevance of both images of a pair to their part of an implicit-change description, or to a whole other caption.

    Args:
        encoder: in evaluation mode.
        images: uint8 ``(2, 3, H, W)``.
        caption: the sentence.
        wrong: per word of ``words_of(caption)``, where known.
    """
    words = words_of(caption)
    spans = component_spans(words) or (range(len(words)),) * 2
    texts = [words[span.start : span.stop] for span in spans]
    seen, read = encoder.encode_image(images.to(next(encoder.parameters()).device)), encoder.encode_text(texts)
    of_patches, of_tokens = relevance(token_similarity(seen.patches, read.tokens), read.word_of >= 0)
    of_words = pool_subwords(of_tokens, read.word_of, max(map(len, texts))).tolist()
    return [
        Judged(
            text,
            scores[: len(text)],
            patches.unflatten(0, encoder.grid).cpu(),
            None if wrong is None else list(wrong[span.start : span.stop]),
        )
        for text, scores, patches, span in zip(texts, of_words, of_patches, spans, strict=True)
    ]


def normalised(values: Tensor) -> Tensor:
    """Values stretched to [0, 1]; all 0.5 where they are equal."""
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else torch.full_like(values, 0.5)


def relevance_map(pairs: Sequence[tuple[Tensor, Sequence[Judged]]], height: int = 224) -> Image:
    """Draw pairs below each other: both images under their patches' relevance, and the words coloured by theirs.

    Relevance is normalised per image and per description, as in the paper. The more blue, the more relevant; words
    that are known to be noise are underlined in red.

    Args:
        pairs: uint8 images ``(2, 3, H, W)`` of each with what :func:`judge` found.
        height: of a picture, pixels.
    """
    from PIL import Image, ImageDraw, ImageFont

    font, small = ImageFont.load_default(15), ImageFont.load_default(12)
    widths = [round(height * images.shape[-1] / images.shape[-2]) for images, _ in pairs]
    column = max(max(widths), 260)
    rows = [[_lines(side.words, font, column) for side in judged] for _, judged in pairs]
    heights = [height + 10 + LINE * max(len(lines) for lines in row) for row in rows]
    sheet = Image.new("RGB", (2 * column + GAP + 2 * MARGIN, sum(heights) + (len(rows) + 1) * MARGIN + LINE), PAPER)
    draw = ImageDraw.Draw(sheet)
    top = MARGIN
    for (images, judged), row, row_height, width in zip(pairs, rows, heights, widths, strict=True):
        for side, (found, lines) in enumerate(zip(judged, row, strict=True)):
            left = MARGIN + side * (column + GAP)
            sheet.paste(_overlaid(images[side], found.of_patches, (width, height)), (left, top))
            shades = normalised(torch.tensor(found.of_words)).tolist() if found.of_words else []
            y = top + height + 6
            for line in lines:
                x: float = left
                for index in line:
                    word = plain(found.words[index])
                    length = font.getlength(word)
                    draw.rectangle((x - 2, y, x + length + 2, y + LINE - 4), _shade(shades[index]))
                    draw.text((x, y), word, PAPER if shades[index] > 0.6 else INK, font)
                    if found.wrong is not None and found.wrong[index]:
                        draw.line((x, y + LINE - 3, x + length, y + LINE - 3), BAD, 2)
                    x += length + 7
                y += LINE
        top += row_height + MARGIN
    _bar(sheet, top - MARGIN // 2, column, small)
    return sheet


def _lines(words: Sequence[str], font: object, width: float) -> list[list[int]]:
    """Indices of the words of each line."""
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

    picture = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()).resize(size, Image.Resampling.BICUBIC)
    shade = (normalised(patches) * 200).round().byte().contiguous().numpy()
    heat = Image.fromarray(shade, "L").resize(size, Image.Resampling.BICUBIC)
    return Image.composite(Image.new("RGB", size, BLUE), picture, heat)


def _bar(sheet: Image, top: int, width: int, font: object) -> None:
    from PIL import ImageDraw

    draw = ImageDraw.Draw(sheet)
    for x in range(width):
        draw.line((MARGIN + x, top, MARGIN + x, top + BAR), _shade(x / (width - 1)))
    for value in (0.0, 0.5, 1.0):
        draw.text((MARGIN + value * width, top + BAR + 1), f"{value:g}", GRAY, font, anchor="ma")  # type: ignore[arg-type]
    draw.text((MARGIN + width + GAP, top - 2), "normalised relevance", GRAY, font)  # type: ignore[arg-type]
