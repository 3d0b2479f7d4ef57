"""The authors' questions to a vision-language model: contents of a region, and difference of two regions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from torch import Tensor

from lightning_idc.methods.img_diff.prompts import DIFFERENCE, REGION_CAPTION, box_in_fractions, box_in_pixels
from lightning_idc.synthesis.drawing import side_by_side
from lightning_idc.synthesis.models.base import DifferenceTeller, ImageCaptioner, VisionLanguageModel
from lightning_idc.utils.bounds import check_arguments

_FORMATS = {"fractions": box_in_fractions, "pixels": box_in_pixels}


class PromptedRegions(ImageCaptioner):
    """Captions regions with a model that reads the whole image and the coordinates of the region (section 19.2.4).

    Args:
        model: vision-language model.
        prompt: question with ``{x1}``, ``{y1}``, ``{x2}`` and ``{y2}``.
        coordinates: ``fractions`` of the image's sides, as for replaced objects, or ``pixels``, as for removed ones.

    Raises:
        ConfigError: ``coordinates`` is neither of the two.
    """

    def __init__(
        self,
        model: VisionLanguageModel,
        prompt: str = REGION_CAPTION,
        coordinates: Literal["fractions", "pixels"] = "fractions",
    ) -> None:
        check_arguments(PromptedRegions.__init__, locals())
        super().__init__()
        self.model, self.prompt, self.coordinates = model, prompt, coordinates

    def settings(self) -> dict[str, Any]:
        return {**self.model.settings(), "prompt": self.prompt, "coordinates": self.coordinates}

    def unsupported_reason(self, facts: Mapping[str, Any]) -> str | None:
        return self.model.unsupported_reason(facts)

    def caption(self, images: Sequence[Tensor]) -> list[str]:
        return self.caption_regions(images, [[0, 0, image.shape[2], image.shape[1]] for image in images])

    def caption_regions(self, images: Sequence[Tensor], boxes: Sequence[Sequence[float]]) -> list[str]:
        coordinates = [
            dict(zip(("x1", "y1", "x2", "y2"), _FORMATS[self.coordinates](box, image.shape[1:]), strict=True))
            for image, box in zip(images, boxes, strict=True)
        ]
        return self.model.answer([[image] for image in images], [self.prompt.format(**box) for box in coordinates])


class PromptedTeller(DifferenceTeller):
    """Describes differences with a model that reads both images side by side, with a bar between them.

    Args:
        model: vision-language model.
        prompt: question with ``{caption1}`` and ``{caption2}`` for the contents of the two boxes.
    """

    def __init__(self, model: VisionLanguageModel, prompt: str = DIFFERENCE) -> None:
        super().__init__()
        self.model, self.prompt = model, prompt

    def settings(self) -> dict[str, Any]:
        return {**self.model.settings(), "prompt": self.prompt}

    def tell(self, before: Sequence[Tensor], after: Sequence[Tensor], captions: Sequence[tuple[str, str]]) -> list[str]:
        prompts = [self.prompt.format(caption1=first, caption2=second) for first, second in captions]
        return self.model.answer([[side_by_side(*pair)] for pair in zip(before, after, strict=True)], prompts)
