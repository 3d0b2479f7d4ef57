"""What a stage asks of a model. Images are uint8 ``(3, H, W)`` of any sizes, boxes are x1 y1 x2 y2 in pixels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


class Slot(nn.Module, ABC):
    """A model in its place. As a module of a stage it is moved to the stage's device."""

    def load(self) -> None:
        """Read the weights, if there are any; called once, before the first batch."""

    def settings(self) -> dict[str, Any]:
        """Model, revision and whatever else decides its answers; plain values, known without the weights."""
        return {"model": type(self).__name__}

    @property
    def device(self) -> torch.device:
        """Of the weights; the CPU where there are none."""
        first = next(self.parameters(), None)
        return torch.device("cpu") if first is None else first.device


class ImageEncoder(Slot):
    """Images to vectors whose cosine says how alike they are."""

    @abstractmethod
    def encode(self, images: Sequence[Tensor]) -> Tensor:
        """Unit vectors, float ``(N, D)`` on the CPU."""


class TextEncoder(Slot):
    """Texts to vectors whose cosine says how alike they are."""

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> Tensor:
        """Unit vectors, float ``(N, D)`` on the CPU."""


class ImageTextMatcher(Slot):
    """Whether a picture shows what a text names."""

    @abstractmethod
    def match(self, images: Sequence[Tensor], texts: Sequence[str]) -> Tensor:
        """One score per picture and text, float ``(N,)`` on the CPU."""


@dataclass(slots=True)
class Region:
    """A part of a picture where something may be.

    Args:
        box: x1 y1 x2 y2, pixels, the last two exclusive.
        confidence: 0 to 1.
        mask: bool ``(H, W)`` of the whole picture.
    """

    box: tuple[int, int, int, int]
    confidence: float
    mask: Tensor


class Segmenter(Slot):
    """Finds where things are, or where two pictures differ."""

    @abstractmethod
    def regions(self, before: Sequence[Tensor], after: Sequence[Tensor]) -> list[list[Region]]:
        """Regions of each pair of pictures of one size, the most confident first."""


class ImageCaptioner(Slot):
    """Says what a picture shows."""

    @abstractmethod
    def caption(self, images: Sequence[Tensor]) -> list[str]:
        """One sentence or phrase for each picture."""


class DifferenceTeller(Slot):
    """Says how two pictures differ inside a box that is drawn on both."""

    @abstractmethod
    def tell(self, before: Sequence[Tensor], after: Sequence[Tensor], captions: Sequence[tuple[str, str]]) -> list[str]:
        """One sentence for each pair.

        Args:
            before: pictures with the red box drawn.
            after: the same.
            captions: what stands in the box in either picture.
        """


class Inpainter(Slot):
    """Fills a part of a picture with background."""

    @abstractmethod
    def fill(self, images: Sequence[Tensor], masks: Sequence[Tensor], seeds: Sequence[int]) -> list[Tensor]:
        """Pictures of the same sizes, unchanged outside of the bool masks ``(H, W)``."""


class TextModel(Slot):
    """A language model that follows an instruction."""

    @abstractmethod
    def answer(self, prompts: Sequence[str], seeds: Sequence[int]) -> list[str]:
        """One answer for each prompt, drawn with its own seed."""


class VisionLanguageModel(Slot):
    """A language model that follows an instruction about pictures."""

    @abstractmethod
    def answer(self, images: Sequence[Sequence[Tensor]], prompts: Sequence[str]) -> list[str]:
        """One answer for each prompt about its pictures."""


def crop(image: Tensor, box: Sequence[float]) -> Tensor:
    """Part of a picture inside a box, at least one pixel each way."""
    height, width = image.shape[1:]
    x1, y1 = min(max(int(box[0]), 0), width - 1), min(max(int(box[1]), 0), height - 1)
    x2, y2 = min(max(round(box[2]), x1 + 1), width), min(max(round(box[3]), y1 + 1), height)
    return image[:, y1:y2, x1:x2]
