"""Model interfaces for stages, with embedded implementations without weights and pretrained ones."""

from __future__ import annotations

from lightning_idc.synthesis.models.base import (
    DifferenceTeller,
    ImageCaptioner,
    ImageEncoder,
    ImageTextMatcher,
    Inpainter,
    ModelInterface,
    PairPainter,
    Region,
    Segmenter,
    TextEncoder,
    TextModel,
    VisionLanguageModel,
)
from lightning_idc.utils.answers import CutOff

__all__ = [
    "CutOff",
    "DifferenceTeller",
    "ImageCaptioner",
    "ImageEncoder",
    "ImageTextMatcher",
    "Inpainter",
    "ModelInterface",
    "PairPainter",
    "Region",
    "Segmenter",
    "TextEncoder",
    "TextModel",
    "VisionLanguageModel",
]
