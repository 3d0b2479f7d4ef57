"""What a stage asks of a model. Images are uint8 ``(3, H, W)`` of any sizes, boxes are x1 y1 x2 y2 in pixels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn


class ModelInterface(nn.Module, ABC):
    """What a stage asks of one kind of model. As a module of a stage it is moved to the stage's device."""

    def load(self) -> None:
        """Read the weights, if there are any; called once, before the first batch."""

    def settings(self) -> dict[str, Any]:
        """Model, revision and whatever else decides its answers; plain values, known without the weights."""
        return {"model": type(self).__name__}

    def requirements(self) -> list[str]:
        """What is missing for `load`: packages, weights, a template; asked before the first stage of a recipe runs."""
        return []

    def weight_bytes(self) -> int:
        """Bytes of the weights, as far as they are known before `load`; 0 where they are not."""
        return 0

    def provenance(self) -> dict[str, Any]:
        """What was read by `load`: the commit and the digest of the weights; nothing where there are none."""
        return {}

    def refusal(self, facts: Mapping[str, Any]) -> str | None:
        """Why this model cannot answer about a record with these facts; None where it can."""
        return None

    @property
    def device(self) -> torch.device:
        """Of the weights; the CPU where there are none."""
        first = next(self.parameters(), None)
        return torch.device("cpu") if first is None else first.device


class ImageEncoder(ModelInterface):
    """Images to vectors whose cosine says how alike they are."""

    @abstractmethod
    def encode(self, images: Sequence[Tensor]) -> Tensor:
        """Unit vectors, float ``(N, D)`` on the CPU."""


class TextEncoder(ModelInterface):
    """Texts to vectors whose cosine says how alike they are."""

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> Tensor:
        """Unit vectors, float ``(N, D)`` on the CPU."""


class ImageTextMatcher(ModelInterface):
    """Whether a picture shows what a text names."""

    score: Literal["cosine", "probability"] | None = None
    """What a score is; None for a scale of the matcher's own."""

    @abstractmethod
    def match(self, images: Sequence[Tensor], texts: Sequence[str]) -> Tensor:
        """One score per picture and text, float ``(N,)`` on the CPU."""


@dataclass(slots=True)
class Region:
    """A part of a picture where something may be.

    Args:
        box: x1 y1 x2 y2, pixels, the last two exclusive.
        confidence: 0 to 1.
        mask: bool ``(H, W)`` of that picture; None where only boxes were asked for.
        picture: 0 or 1, the one of a pair that it was found in; None for both.
    """

    box: tuple[int, int, int, int]
    confidence: float
    mask: Tensor | None = None
    picture: Literal[0, 1] | None = None


class Segmenter(ModelInterface):
    """Finds where things are, or where two pictures differ."""

    @abstractmethod
    def regions(self, before: Sequence[Tensor], after: Sequence[Tensor], masks: bool = False) -> list[list[Region]]:
        """Regions of each pair of pictures, the most confident first.

        Args:
            before: first pictures.
            after: second pictures, each of its partner's size.
            masks: whether the regions' masks are needed; boxes alone are cheaper.
        """


class ImageCaptioner(ModelInterface):
    """Says what a picture shows, or a part of it."""

    @abstractmethod
    def caption(self, images: Sequence[Tensor]) -> list[str]:
        """One sentence or phrase for each picture."""

    def caption_regions(self, images: Sequence[Tensor], boxes: Sequence[Sequence[float]]) -> list[str]:
        """One sentence or phrase for what stands in a box of each picture; asked of the crops unless overridden.

        Args:
            images: uint8 ``(3, H, W)`` each.
            boxes: x1 y1 x2 y2 in pixels, one for each.
        """
        return self.caption([crop(image, box) for image, box in zip(images, boxes, strict=True)])


class DifferenceTeller(ModelInterface):
    """Says how two pictures differ inside a box that is drawn on both."""

    @abstractmethod
    def tell(self, before: Sequence[Tensor], after: Sequence[Tensor], captions: Sequence[tuple[str, str]]) -> list[str]:
        """One sentence for each pair.

        Args:
            before: pictures with the red box drawn.
            after: the same.
            captions: what stands in the box in either picture.
        """


class Inpainter(ModelInterface):
    """Fills a part of a picture with background."""

    @abstractmethod
    def fill(self, images: Sequence[Tensor], masks: Sequence[Tensor], seeds: Sequence[int]) -> list[Tensor]:
        """Pictures of the same sizes, unchanged outside of the bool masks ``(H, W)``."""


class PairPainter(ModelInterface):
    """Paints two captions that differ in one object as pictures that differ in one place."""

    size: int | None = None
    """Height and width of the pictures, pixels; None for the model's own."""

    @abstractmethod
    def paint(self, captions: Sequence[tuple[str, str]], seeds: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """Two pictures for each pair of captions, uint8 ``(3, H, W)``."""


class CutOff(str):
    """An answer whose model was stopped by its limit of tokens, so that it may break off anywhere."""

    __slots__ = ()


class TextModel(ModelInterface):
    """A language model that follows an instruction."""

    @abstractmethod
    def answer(self, prompts: Sequence[str], seeds: Sequence[int]) -> list[str]:
        """One answer for each prompt, drawn with its own seed."""


class VisionLanguageModel(ModelInterface):
    """A language model that follows an instruction about pictures."""

    @abstractmethod
    def answer(self, images: Sequence[Sequence[Tensor]], prompts: Sequence[str]) -> list[str]:
        """One answer for each prompt about its pictures; a `CutOff` where the model says that it was stopped."""


def crop(image: Tensor, box: Sequence[float]) -> Tensor:
    """Part of a picture inside a box, at least one pixel each way."""
    height, width = image.shape[1:]
    x1, y1 = min(max(int(box[0]), 0), width - 1), min(max(int(box[1]), 0), height - 1)
    x2, y2 = min(max(round(box[2]), x1 + 1), width), min(max(round(box[3]), y1 + 1), height)
    return image[:, y1:y2, x1:x2]
