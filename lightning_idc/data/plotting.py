"""A pair as one picture: before, after, boxes, type of change and captions."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from lightning_idc.images.types import PairSample

if TYPE_CHECKING:
    from PIL.Image import Image

_PAPER, _INK, _BOX = (255, 255, 255), (28, 28, 30), (230, 110, 20)
_GAP, _MARGIN, _TEXT = 8, 8, 14


def as_rgb(image: Tensor) -> Tensor:
    """uint8 ``(C, H, W)`` to ``(3, H, W)`` for people to look at: grey three times, else the first three channels."""
    if len(image) >= 3:
        return image[:3]
    return image.expand(3, -1, -1) if len(image) == 1 else torch.cat([image, torch.zeros_like(image[:1])])


def plot_pair(sample: PairSample, side: int = 320, captions: int = 5, heat: Tensor | None = None) -> Image:
    """Draw a pair.

    Args:
        sample: with its images, and perhaps boxes, which are drawn on both.
        side: the images are enlarged or made smaller so that their longer side has so many pixels.
        captions: most captions that are shown.
        heat: ``(rows, columns)`` from 0 to 1, drawn over the second image in a third picture.
    """
    from PIL import Image, ImageDraw, ImageFont

    height, width = sample.before.shape[1:]
    scale = side / max(height, width)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    shown = [as_rgb(sample.before), as_rgb(sample.after)]
    if heat is not None:
        shown.append(_heated(shown[1], heat))
    total = len(shown) * size[0] + (len(shown) - 1) * _GAP + 2 * _MARGIN
    lines = [f"{sample.id}" + (f"   {sample.change_type}" if sample.change_type else "")]
    for caption in sample.captions[:captions]:
        lines += textwrap.wrap(f"- {caption}", max(10, total // (_TEXT // 2)), subsequent_indent="  ")
    sheet = Image.new("RGB", (total, size[1] + 3 * _MARGIN + (_TEXT + 4) * len(lines)), _PAPER)
    draw = ImageDraw.Draw(sheet)
    for column, image in enumerate(shown):
        left = _MARGIN + column * (size[0] + _GAP)
        picture = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
        sheet.paste(picture.resize(size, Image.Resampling.BICUBIC), (left, _MARGIN))
        for box in [] if sample.boxes is None or column > 1 else sample.boxes[:, column].tolist():
            if all(value == value for value in box):  # NaN: the change has no extent on this side
                corners = [value * scale for value in box]
                draw.rectangle(
                    (left + corners[0], _MARGIN + corners[1], left + corners[2], _MARGIN + corners[3]), None, _BOX, 2
                )
    font = ImageFont.load_default(_TEXT)
    for number, line in enumerate(lines):
        draw.text((_MARGIN, size[1] + 2 * _MARGIN + number * (_TEXT + 4)), line, _INK, font)
    return sheet


def _heated(image: Tensor, heat: Tensor) -> Tensor:
    """An image ``(3, H, W)`` that shines through where the heat is high and is pale and grey elsewhere."""
    full = F.interpolate(heat[None, None].float(), size=image.shape[1:], mode="bilinear", align_corners=False)[0]
    pale = 255 - (255 - image.float().mean(0, keepdim=True)) * 0.4
    colour = torch.tensor(_BOX).view(3, 1, 1)
    return (pale + full.clamp(0, 1) * (0.5 * image + 0.5 * colour - pale)).round().to(torch.uint8)
