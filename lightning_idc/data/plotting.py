"""Plot a pair as one image: labelled panels, boxes, type of change and captions."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from lightning_idc.images.display import to_pil
from lightning_idc.images.types import PairSample

if TYPE_CHECKING:
    from PIL.Image import Image

_BACKGROUND, _TEXT_COLOUR, _LABEL_COLOUR, _BOX_COLOUR = (255, 255, 255), (28, 28, 30), (110, 110, 118), (230, 110, 20)
_GAP, _MARGIN, _FONT_SIZE = 8, 8, 14
_LINE = _FONT_SIZE + 4
_PANELS = ("before", "after", "where")


def as_rgb(image: Tensor) -> Tensor:
    """Convert uint8 ``(C, H, W)`` to ``(3, H, W)`` for display: grey is repeated, else the first three channels."""
    if len(image) >= 3:
        return image[:3]
    return image.expand(3, -1, -1) if len(image) == 1 else torch.cat([image, torch.zeros_like(image[:1])])


def plot_pair(sample: PairSample, side: int = 320, captions: int = 5, heat: Tensor | None = None) -> Image:
    """Plot a pair.

    Args:
        sample: images of the pair; its boxes are drawn on both.
        side: pixels of the longer side of each panel.
        captions: maximum number of captions.
        heat: heat map ``(rows, columns)`` with values in [0, 1], drawn over the second image in a third panel.
    """
    from PIL import Image, ImageDraw, ImageFont

    height, width = sample.before.shape[1:]
    scale = side / max(height, width)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    panels = [as_rgb(sample.before), as_rgb(sample.after)]
    if heat is not None:
        panels.append(_overlay(panels[1], heat))
    total = len(panels) * size[0] + (len(panels) - 1) * _GAP + 2 * _MARGIN
    lines = []
    for caption in sample.captions[:captions]:
        text = caption if len(sample.captions) == 1 else f"- {caption}"
        lines += textwrap.wrap(text, max(10, total // (_FONT_SIZE // 2)), subsequent_indent="  ")
    # "pair" is the placeholder id of a pair of two files
    footer = "   ".join(part for part in (sample.id if sample.id != "pair" else "", sample.change_type or "") if part)
    top = _MARGIN + _LINE
    rows = len(lines) + bool(footer)
    sheet = Image.new("RGB", (total, top + size[1] + 2 * _MARGIN + _LINE * rows), _BACKGROUND)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(_FONT_SIZE)
    for column, image in enumerate(panels):
        left = _MARGIN + column * (size[0] + _GAP)
        draw.text((left, _MARGIN - 2), _PANELS[column], _LABEL_COLOUR, font)
        panel = to_pil(image)
        sheet.paste(panel.resize(size, Image.Resampling.BICUBIC), (left, top))
        for box in [] if sample.boxes is None or column > 1 else sample.boxes[:, column].tolist():
            if all(value == value for value in box):  # NaN: the change has no extent on this side
                corners = [value * scale for value in box]
                draw.rectangle(
                    (left + corners[0], top + corners[1], left + corners[2], top + corners[3]), None, _BOX_COLOUR, 2
                )
    bottom = top + size[1] + _MARGIN
    for number, line in enumerate(lines):
        draw.text((_MARGIN, bottom + number * _LINE), line, _TEXT_COLOUR, font)
    if footer:
        draw.text((_MARGIN, bottom + len(lines) * _LINE), footer, _LABEL_COLOUR, font)
    return sheet


def _overlay(image: Tensor, heat: Tensor) -> Tensor:
    """Overlay a heat map on an image ``(3, H, W)``: coloured where the heat is high, pale grey elsewhere."""
    full = F.interpolate(heat[None, None].float(), size=image.shape[1:], mode="bilinear", align_corners=False)[0]
    pale = 255 - (255 - image.float().mean(0, keepdim=True)) * 0.4
    colour = torch.tensor(_BOX_COLOUR).view(3, 1, 1)
    return (pale + full.clamp(0, 1) * (0.5 * image + 0.5 * colour - pale)).round().to(torch.uint8)
