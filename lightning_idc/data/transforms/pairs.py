"""Transforms of pairs: geometry is the same on both images, light may differ, and words follow flips."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from lightning_idc.core.images import Interpolation, resize
from lightning_idc.core.types import PairSample
from lightning_idc.data.transforms.sides import swap_sides


class PairTransform(ABC):
    """Changes a pair, drawing all chance from the generator it is given."""

    @abstractmethod
    def __call__(self, sample: PairSample, generator: torch.Generator) -> PairSample: ...


def _uniform(generator: torch.Generator, low: float = 0.0, high: float = 1.0) -> float:
    return low + (high - low) * float(torch.rand((), generator=generator))


class Compose(PairTransform):
    """Several transforms in order.

    Args:
        transforms: applied one after the other.
    """

    def __init__(self, transforms: Sequence[PairTransform]) -> None:
        self.transforms = list(transforms)

    def __call__(self, sample: PairSample, generator: torch.Generator) -> PairSample:
        for transform in self.transforms:
            sample = transform(sample, generator)
        return sample


class Resize(PairTransform):
    """Both images, boxes and masks to one size; the aspect is not kept.

    Args:
        size: height and width.
        interpolation: of the images.
    """

    def __init__(self, size: tuple[int, int], interpolation: Interpolation = "bilinear") -> None:
        self.size, self.interpolation = size, interpolation

    def __call__(self, sample: PairSample, generator: torch.Generator) -> PairSample:
        height, width = sample.before.shape[1:]
        if (height, width) == tuple(self.size):
            return sample
        scale = torch.tensor([self.size[1] / width, self.size[0] / height] * 2)
        masks = None if sample.masks is None else F.interpolate(sample.masks[None].float(), self.size)[0] > 0.5
        return replace(
            sample,
            before=resize(sample.before, self.size, self.interpolation),
            after=resize(sample.after, self.size, self.interpolation),
            boxes=None if sample.boxes is None else sample.boxes * scale,
            masks=masks,
        )


class Flip(PairTransform):
    """Mirror both images left to right, and the words for the sides in their captions.

    Args:
        probability: of a flip.
    """

    def __init__(self, probability: float = 0.5) -> None:
        self.probability = probability

    def __call__(self, sample: PairSample, generator: torch.Generator) -> PairSample:
        if _uniform(generator) >= self.probability:
            return sample
        width = sample.before.shape[2]
        boxes = None
        if sample.boxes is not None:
            x1, y1, x2, y2 = sample.boxes.unbind(-1)
            boxes = torch.stack([width - x2, y1, width - x1, y2], -1)
        return replace(
            sample,
            before=sample.before.flip(-1),
            after=sample.after.flip(-1),
            captions=[swap_sides(caption) for caption in sample.captions],
            boxes=boxes,
            masks=None if sample.masks is None else sample.masks.flip(-1),
            # a ground truth in meta stays that of the pictures before
            meta={**sample.meta, "flipped": not sample.meta.get("flipped", False)},
        )


class RandomCrop(PairTransform):
    """The same random window of both images, scaled back to their size; captions stay.

    Boxes that it cuts away become NaN. Keep most of the images where captions name places or small things.

    Args:
        least: smallest share of each side that stays.
    """

    def __init__(self, least: float = 0.8) -> None:
        self.least = least

    def __call__(self, sample: PairSample, generator: torch.Generator) -> PairSample:
        height, width = sample.before.shape[1:]
        tall, wide = (max(1, round(side * _uniform(generator, self.least))) for side in (height, width))
        top = int(_uniform(generator, 0, height - tall + 1))
        left = int(_uniform(generator, 0, width - wide + 1))

        def window(image: Tensor) -> Tensor:
            return image[:, top : top + tall, left : left + wide]

        boxes = sample.boxes
        if boxes is not None:
            limits = torch.tensor([wide, tall] * 2, dtype=boxes.dtype)
            boxes = (boxes - torch.tensor([left, top] * 2)).clamp(min=torch.zeros(4), max=limits)
            outside = (boxes[..., 2:] <= boxes[..., :2]).any(-1, keepdim=True)
            boxes = boxes.masked_fill(outside, torch.nan)  # nothing of it is left in the window
        cropped = replace(
            sample,
            before=window(sample.before),
            after=window(sample.after),
            boxes=boxes,
            masks=None if sample.masks is None else window(sample.masks),
        )
        return Resize((height, width))(cropped, generator)


class Jitter(PairTransform):
    """Brightness, contrast and tint of each image on its own: a distractor, since no caption speaks of it.

    Args:
        brightness: greatest factor away from 1.
        contrast: greatest factor away from 1.
        tint: greatest factor away from 1, per colour channel.
    """

    def __init__(self, brightness: float = 0.2, contrast: float = 0.2, tint: float = 0.05) -> None:
        self.brightness, self.contrast, self.tint = brightness, contrast, tint

    def __call__(self, sample: PairSample, generator: torch.Generator) -> PairSample:
        return replace(sample, before=self._light(sample.before, generator), after=self._light(sample.after, generator))

    def _light(self, image: Tensor, generator: torch.Generator) -> Tensor:
        pixels = image.float()
        tints = torch.tensor([_uniform(generator, 1 - self.tint, 1 + self.tint) for _ in image])
        pixels = pixels * tints.view(-1, 1, 1) * _uniform(generator, 1 - self.brightness, 1 + self.brightness)
        mean = pixels.mean()
        pixels = mean + (pixels - mean) * _uniform(generator, 1 - self.contrast, 1 + self.contrast)
        return pixels.round().clamp(0, 255).to(torch.uint8)
