"""Slots without weights: colours, thumbnails and words, for runs on any machine and for tests; names: `prototypes`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lightning_idc.data.synthetic.scene import COLORS
from lightning_idc.images.resize import resize
from lightning_idc.synthesis.models.base import (
    DifferenceTeller,
    ImageEncoder,
    ImageTextMatcher,
    TextEncoder,
)

_STOP = frozenset(
    {"a", "an", "and", "are", "at", "be", "by", "for", "from", "has", "have", "here", "in", "into", "is", "it", "its"}
    | {"of", "on", "or", "that", "the", "there", "this", "to", "was", "were", "with"}
)
_WORD = re.compile(r"[a-z0-9]+")


def opponent(images: Tensor) -> Tensor:
    """Brightness and two colour differences of the logarithm, in which a light only adds.

    Args:
        images: 0 to 255, ``(..., 3, H, W)``.
    """
    red, green, blue = (images.float() + 16).log().unbind(-3)
    return torch.stack([(red + green + blue) / 3, red - green, blue - (red + green) / 2], -3)


class PixelEncoder(ImageEncoder):
    """A thumbnail as a vector: brightness around its mean and colour differences, with a floor under flat pictures.

    Args:
        side: of the thumbnail, pixels.
        floor: constant part, which keeps noise in pictures without contrast from deciding.
    """

    def __init__(self, side: int = 16, floor: float = 0.15) -> None:
        super().__init__()
        self.side, self.floor = side, floor

    def settings(self) -> dict[str, Any]:
        return {"model": "PixelEncoder", "side": self.side, "floor": self.floor}

    def encode(self, images: Sequence[Tensor]) -> Tensor:
        small = torch.stack([resize(image, (self.side, self.side)) for image in images])
        values = opponent(small)
        values = torch.cat([values[:, :1] - values[:, :1].mean((2, 3), keepdim=True), values[:, 1:]], 1).flatten(1)
        constant = values.new_full((len(values), 1), self.floor * self.side * 3**0.5)
        return F.normalize(torch.cat([values, constant], 1), dim=1)


class WordEncoder(TextEncoder):
    """Content words, counted into a hashed vector."""

    size = 4096

    def encode(self, texts: Sequence[str]) -> Tensor:
        values = torch.zeros(len(texts), self.size)
        for row, text in enumerate(texts):
            for word in _WORD.findall(text.lower()):
                if word not in _STOP:
                    place = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=4).digest(), "big") % self.size
                    values[row, place] += 1
        return F.normalize(values, dim=1)


_SHADES = (0.2, 0.4, 0.7, 1.0, 1.3)
"""How bright a colour may be in a picture; the offset of `opponent` makes dark colours paler."""


def color_shares(images: Sequence[Tensor], side: int = 24) -> Tensor:
    """How much of the middle of each picture has which of the named colours, ``(N, len(COLORS))``."""
    values = opponent(torch.stack([resize(image, (side, side)) for image in images]))[:, 1:]
    base = torch.tensor(list(COLORS.values()), dtype=torch.float32)
    shades = torch.cat([base * shade for shade in _SHADES])
    named = opponent(shades.reshape(-1, 3, 1, 1))[:, 1:, 0, 0]
    distance = (values[:, None] - named[None, :, :, None, None]).square().sum(2)
    nearest = distance.argmin(1) % len(COLORS)
    axis = (torch.arange(side) + 0.5) / side * 2 - 1
    # a thing in a tight box fills an ellipse of its middle, whatever its shape
    middle = (axis[:, None] ** 2 + axis[None] ** 2) < 0.55
    counts = F.one_hot(nearest, len(COLORS))[:, middle].sum(1)
    return counts / counts.sum(1, keepdim=True)


class ColorMatcher(ImageTextMatcher):
    """Share of a picture's middle that has the colour which a text names.

    A text without a colour is answered by contrast, how far the middle differs from the margin: low for "background",
    high for anything else.
    """

    def match(self, images: Sequence[Tensor], texts: Sequence[str]) -> Tensor:
        shares, names = color_shares(images), list(COLORS)
        scores = []
        for row, (image, text) in enumerate(zip(images, texts, strict=True)):
            words = _WORD.findall(text.lower())
            said = [names.index(word) for word in words if word in COLORS]
            contrast = 0.0 if said else _contrast(image)
            scores.append(float(shares[row, said].sum()) if said else abs(contrast - ("background" in words)))
        return torch.tensor(scores)


def _contrast(image: Tensor) -> float:
    """Distance of the middle from the margin in colour and brightness, 0 to 1."""
    values = opponent(resize(image, (16, 16)))
    middle, margin = (
        values[:, 4:12, 4:12].flatten(1),
        torch.cat([values[:, :2].flatten(1), values[:, -2:].flatten(1)], 1),
    )
    return float((middle.mean(1) - margin.mean(1)).norm().clamp(max=1))


class TemplateTeller(DifferenceTeller):
    """Puts the two region captions into one sentence; it does not look at the pictures."""

    def __init__(self, background: str = "plain background") -> None:
        super().__init__()
        self.background = background

    def settings(self) -> dict[str, Any]:
        return {"model": "TemplateTeller"}

    def tell(self, before: Sequence[Tensor], after: Sequence[Tensor], captions: Sequence[tuple[str, str]]) -> list[str]:
        return [self._sentence(*both) for both in captions]

    def _sentence(self, first: str, second: str) -> str:
        if second == self.background:
            return f"{first} was removed"
        if first == self.background:
            return f"{second} was added"
        return f"{first} was replaced by {second}"
