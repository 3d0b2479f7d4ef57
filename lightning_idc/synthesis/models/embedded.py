"""Models without weights, based on colours, thumbnails and words, for tests and runs without downloads."""

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
from lightning_idc.utils.bounds import NonNegativeFloat, PositiveInt, check_arguments

_STOP = frozenset(
    {"a", "an", "and", "are", "at", "be", "by", "for", "from", "has", "have", "here", "in", "into", "is", "it", "its"}
    | {"of", "on", "or", "that", "the", "there", "this", "to", "was", "were", "with"}
)
_WORD = re.compile(r"[a-z0-9]+")


def opponent(images: Tensor) -> Tensor:
    """Convert images to log-opponent colours (brightness and two colour differences), where light is additive.

    Args:
        images: values from 0 to 255, ``(..., 3, H, W)``.
    """
    red, green, blue = (images.float() + 16).log().unbind(-3)
    return torch.stack([(red + green + blue) / 3, red - green, blue - (red + green) / 2], -3)


class PixelEncoder(ImageEncoder):
    """Encodes a thumbnail as centred brightness and colour differences, with a constant that dampens flat images.

    Args:
        side: side of the thumbnail in pixels.
        floor: constant component, which keeps noise from dominating images without contrast.
    """

    def __init__(self, side: PositiveInt = 16, floor: NonNegativeFloat = 0.15) -> None:
        check_arguments(PixelEncoder.__init__, locals())
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
    """Encodes a text as a hashed bag of content words."""

    size = 4096

    def encode(self, texts: Sequence[str]) -> Tensor:
        values = torch.zeros(len(texts), self.size)
        for row, text in enumerate(texts):
            for word in _WORD.findall(text.lower()):
                if word not in _STOP:
                    index = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=4).digest(), "big") % self.size
                    values[row, index] += 1
        return F.normalize(values, dim=1)


_SHADES = (0.2, 0.4, 0.7, 1.0, 1.3)
"""Brightness levels of a named colour; the offset in `opponent` makes dark colours paler."""


def color_fractions(images: Sequence[Tensor], side: int = 24) -> Tensor:
    """Compute the fraction of each named colour in the centre of each image, ``(N, len(COLORS))``."""
    values = opponent(torch.stack([resize(image, (side, side)) for image in images]))[:, 1:]
    base = torch.tensor(list(COLORS.values()), dtype=torch.float32)
    shades = torch.cat([base * shade for shade in _SHADES])
    named = opponent(shades.reshape(-1, 3, 1, 1))[:, 1:, 0, 0]
    distance = (values[:, None] - named[None, :, :, None, None]).square().sum(2)
    nearest = distance.argmin(1) % len(COLORS)
    axis = (torch.arange(side) + 0.5) / side * 2 - 1
    # an object of any shape fills the central ellipse of its tight box
    centre = (axis[:, None] ** 2 + axis[None] ** 2) < 0.55
    counts = F.one_hot(nearest, len(COLORS))[:, centre].sum(1)
    return counts / counts.sum(1, keepdim=True)


class ColorMatcher(ImageTextMatcher):
    """Scores the fraction of an image's centre with the colours named in a text.

    A text without a colour is scored by the contrast between centre and margin: high contrast matches any text except
    one with "background".
    """

    def match(self, images: Sequence[Tensor], texts: Sequence[str]) -> Tensor:
        fractions, names = color_fractions(images), list(COLORS)
        scores = []
        for row, (image, text) in enumerate(zip(images, texts, strict=True)):
            words = _WORD.findall(text.lower())
            named_colors = [names.index(word) for word in words if word in COLORS]
            contrast = 0.0 if named_colors else _contrast(image)
            scores.append(
                float(fractions[row, named_colors].sum()) if named_colors else abs(contrast - ("background" in words))
            )
        return torch.tensor(scores)


def _contrast(image: Tensor) -> float:
    """Compute the distance between centre and margin in colour and brightness, 0 to 1."""
    values = opponent(resize(image, (16, 16)))
    centre, margin = (
        values[:, 4:12, 4:12].flatten(1),
        torch.cat([values[:, :2].flatten(1), values[:, -2:].flatten(1)], 1),
    )
    return float((centre.mean(1) - margin.mean(1)).norm().clamp(max=1))


class TemplateTeller(DifferenceTeller):
    """Combines two region captions into one sentence with a template, ignoring the images."""

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
