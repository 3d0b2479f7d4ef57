"""Model interfaces for stages, with embedded implementations without weights and pretrained ones."""

from __future__ import annotations

from lightning_idc.synthesis.models.base import (
    CutOff,
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
