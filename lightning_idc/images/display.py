"""Images of any number of channels as pictures for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from PIL.Image import Image


def to_pil(image: Tensor) -> Image:
    """RGB image from uint8 ``(C, H, W)``: the first three channels, or of one or two channels the first one in grey."""
    from PIL import Image

    bands = image[:3] if len(image) > 2 else image[:1].expand(3, -1, -1)
    return Image.fromarray(bands.permute(1, 2, 0).contiguous().cpu().numpy())
