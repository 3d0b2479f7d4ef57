"""Model interfaces for stages. Images are uint8 ``(3, H, W)`` of any size, boxes x1 y1 x2 y2 in pixels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn


class ModelInterface(nn.Module, ABC):
    """Base of model interfaces; a sub-module of a stage, so that it moves to the device of the stage."""

    def load(self) -> None:
        """Load the weights, if any; called before the first batch."""

    def settings(self) -> dict[str, Any]:
        """Return the settings that determine outputs, such as model and revision; plain values, known before `load`."""
        return {"model": type(self).__name__}

    def requirements(self) -> list[str]:
        """List what is missing for `load`, such as packages, weights or a template; see `preflight`."""
        return []

    def weight_bytes(self) -> int:
        """Return the size of the weights in bytes; 0 if unknown before `load`."""
        return 0

    def provenance(self) -> dict[str, Any]:
        """Return the commit and the weights digest of the loaded model; empty without weights."""
        return {}

    def unsupported_reason(self, facts: Mapping[str, Any]) -> str | None:
        """Return the reason why a record with these facts is not supported; None if it is."""
        return None

    @property
    def device(self) -> torch.device:
        """Device of the weights; the CPU without weights."""
        first = next(self.parameters(), None)
        return torch.device("cpu") if first is None else first.device


class ImageEncoder(ModelInterface):
    """Encodes images as vectors with the cosine as similarity."""

    @abstractmethod
    def encode(self, images: Sequence[Tensor]) -> Tensor:
        """Encode N images as unit vectors, float ``(N, D)`` on the CPU."""


class TextEncoder(ModelInterface):
    """Encodes texts as vectors with the cosine as similarity."""

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> Tensor:
        """Encode N texts as unit vectors, float ``(N, D)`` on the CPU."""


class ImageTextMatcher(ModelInterface):
    """Scores how well a text matches an image."""

    score: Literal["cosine", "probability"] | None = None
    """Scale of the scores; None for a custom scale."""

    @abstractmethod
    def match(self, images: Sequence[Tensor], texts: Sequence[str]) -> Tensor:
        """Score N pairs of image and text, float ``(N,)`` on the CPU."""


@dataclass(slots=True)
class Region:
    """Candidate region of an image.

    Args:
        box: x1 y1 x2 y2 in pixels, the last two exclusive.
        confidence: confidence from 0 to 1.
        mask: bool ``(H, W)`` of the image; None if only boxes were requested.
        image_index: image of the pair that contains the region, 0 or 1; None for both.
    """

    box: tuple[int, int, int, int]
    confidence: float
    mask: Tensor | None = None
    image_index: Literal[0, 1] | None = None


class Segmenter(ModelInterface):
    """Proposes regions of objects, or of differences between two images."""

    @abstractmethod
    def regions(self, before: Sequence[Tensor], after: Sequence[Tensor], masks: bool = False) -> list[list[Region]]:
        """Propose regions of each pair of images, most confident first.

        Args:
            before: first images.
            after: second images, each with the size of the first.
            masks: whether masks are required; boxes alone are cheaper.
        """


class ImageCaptioner(ModelInterface):
    """Captions images or regions of images."""

    @abstractmethod
    def caption(self, images: Sequence[Tensor]) -> list[str]:
        """Generate a sentence or phrase for each image."""

    def caption_regions(self, images: Sequence[Tensor], boxes: Sequence[Sequence[float]]) -> list[str]:
        """Generate a sentence or phrase for a box of each image; by default, caption the crops.

        Args:
            images: uint8 ``(3, H, W)`` each.
            boxes: one box per image, x1 y1 x2 y2 in pixels.
        """
        return self.caption([crop(image, box) for image, box in zip(images, boxes, strict=True)])


class DifferenceTeller(ModelInterface):
    """Describes the difference of two images inside a box drawn on both."""

    @abstractmethod
    def tell(self, before: Sequence[Tensor], after: Sequence[Tensor], captions: Sequence[tuple[str, str]]) -> list[str]:
        """Generate a sentence for each pair.

        Args:
            before: first images, with a red box.
            after: second images, with the same box.
            captions: captions of the box in both images.
        """


class Inpainter(ModelInterface):
    """Fills a part of an image with background."""

    @abstractmethod
    def fill(self, images: Sequence[Tensor], masks: Sequence[Tensor], seeds: Sequence[int]) -> list[Tensor]:
        """Inpaint images inside of bool masks ``(H, W)``; other pixels do not change."""


class PairPainter(ModelInterface):
    """Generates two images that differ in one region from two captions that differ in one object."""

    size: int | None = None
    """Height and width of the images in pixels; None for the default of the model."""

    @abstractmethod
    def paint(self, captions: Sequence[tuple[str, str]], seeds: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """Generate two images for each pair of captions, uint8 ``(3, H, W)``."""


class TextModel(ModelInterface):
    """Instruction-following language model."""

    @abstractmethod
    def answer(self, prompts: Sequence[str], seeds: Sequence[int]) -> list[str]:
        """Generate an answer for each prompt, each with its own seed."""


class VisionLanguageModel(ModelInterface):
    """Instruction-following language model with image inputs."""

    @abstractmethod
    def answer(self, images: Sequence[Sequence[Tensor]], prompts: Sequence[str]) -> list[str]:
        """Generate an answer for each prompt and its images; a `CutOff` for a truncated answer."""


def crop(image: Tensor, box: Sequence[float]) -> Tensor:
    """Crop an image to a box, at least one pixel wide and high."""
    height, width = image.shape[1:]
    x1, y1 = min(max(int(box[0]), 0), width - 1), min(max(int(box[1]), 0), height - 1)
    x2, y2 = min(max(round(box[2]), x1 + 1), width), min(max(round(box[3]), y1 + 1), height)
    return image[:, y1:y2, x1:x2]
