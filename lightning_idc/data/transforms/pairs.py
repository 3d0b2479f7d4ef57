"""Transforms of pairs: geometry is the same on both images, light may differ, and words follow flips."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from lightning_idc.data.transforms.sides import swap_heights, swap_sides
from lightning_idc.images.resize import Interpolation, resize
from lightning_idc.images.types import PairSample
from lightning_idc.utils.errors import ConfigError, DataError, check_number, check_positive


class PairTransform(ABC):
    """Changes a pair, drawing all chance from the generator it is given."""

    @abstractmethod
    def __call__(self, sample: PairSample, generator: torch.Generator) -> PairSample: ...


def _uniform(generator: torch.Generator, low: float = 0.0, high: float = 1.0) -> float:
    return low + (high - low) * float(torch.rand((), generator=generator))


def _check_share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ConfigError(f"{name} is {value!r}; expected a number from 0 to 1")


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
        return replace(
            sample,
            before=resize(sample.before, self.size, self.interpolation),
            after=resize(sample.after, self.size, self.interpolation),
            boxes=None if sample.boxes is None else sample.boxes * scale,
            masks=None if sample.masks is None else _resized_masks(sample.masks, self.size),
        )


def _resized_masks(masks: Tensor, size: tuple[int, int]) -> Tensor:
    """Masks of another size, in which a pixel is set that any of its former pixels is: small changes stay."""
    height, width = masks.shape[1:]
    smaller = F.adaptive_max_pool2d(masks[None].float(), (min(height, size[0]), min(width, size[1])))
    return F.interpolate(smaller, size)[0] > 0.5


class Flip(PairTransform):
    """Mirror both images left to right, and the words for the sides in their captions.

    Args:
        probability: of a flip.
        upside_down: probability of a flip top to bottom, for pictures that are seen from above.
    """

    def __init__(self, probability: float = 0.5, upside_down: float = 0.0) -> None:
        _check_share("probability", probability)
        _check_share("upside_down", upside_down)
        self.probability, self.upside_down = probability, upside_down

    def __call__(self, sample: PairSample, generator: torch.Generator) -> PairSample:
        if _uniform(generator) < self.probability:
            flipped = not sample.meta.get("flipped", False)
            # a ground truth in meta stays that of the pictures before
            sample = replace(_mirrored(sample, -1, swap_sides), meta={**sample.meta, "flipped": flipped})
        if self.upside_down and _uniform(generator) < self.upside_down:
            sample = _mirrored(sample, -2, swap_heights)
        return sample


def _mirrored(sample: PairSample, axis: int, words: Callable[[str], str]) -> PairSample:
    """A pair with its images, boxes and masks mirrored along an axis, -1 or -2, and other words in its captions."""
    boxes = None if sample.boxes is None else sample.boxes.clone()
    if boxes is not None:
        ends = [0, 2] if axis == -1 else [1, 3]
        boxes[..., ends] = sample.before.shape[axis] - boxes[..., ends[::-1]]
    return replace(
        sample,
        before=sample.before.flip(axis),
        after=sample.after.flip(axis),
        captions=[words(caption) for caption in sample.captions],
        boxes=boxes,
        masks=None if sample.masks is None else sample.masks.flip(axis),
    )


class RandomCrop(PairTransform):
    """The same random window of both images, scaled back to their size; captions stay.

    Boxes that it cuts away become NaN. Keep most of the images where captions name places or small things.

    Args:
        min_scale: smallest share of each side that stays.
    """

    def __init__(self, min_scale: float = 0.8) -> None:
        check_positive("min_scale", min_scale, maximum=1)
        self.min_scale = min_scale

    def __call__(self, sample: PairSample, generator: torch.Generator) -> PairSample:
        height, width = sample.before.shape[1:]
        tall, wide = (max(1, round(side * _uniform(generator, self.min_scale))) for side in (height, width))
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


class CropToChange(PairTransform):
    """The same window of both images, not scaled, with a change at a random place in it; captions stay.

    For labels of cells, whose changes are few and far between: most of the work of an epoch is left out. A box stays
    where any of it is in the window, also beyond its edges, and becomes NaN otherwise. Without boxes the window is
    anywhere.

    Args:
        size: height and width of the window, pixels; at most those of the images.
        anywhere: share of windows that need not hold a change.
        mistaken: share of windows around a place outside the boxes where a block of four pixels a side differs, of
            pairs that have one: what a network is most likely to take for a change.
    """

    def __init__(self, size: int, anywhere: float = 0.1, mistaken: float = 0.0) -> None:
        check_number("size", size, minimum=1)
        if not 0 <= anywhere + mistaken <= 1:
            raise ConfigError(f"anywhere and mistaken are {anywhere} and {mistaken}; expected shares, at most 1 in all")
        self.size, self.anywhere, self.mistaken = size, anywhere, mistaken

    def __call__(self, sample: PairSample, generator: torch.Generator) -> PairSample:
        side, boxes = self.size, sample.boxes
        height, width = sample.before.shape[1:]
        if min(height, width) < side:
            raise DataError(f"pair {sample.id!r} is {width}x{height}; a window of {side}x{side} does not fit into it")
        draws = [_uniform(generator) for _ in range(4)]
        left, top = draws[0] * (width - side + 1), draws[1] * (height - side + 1)
        places = self._places(sample, draws[2])
        if len(places):
            x, y = places[int(draws[3] * len(places))].tolist()
            left, top = x - draws[0] * side, y - draws[1] * side
        left, top = (min(max(int(start), 0), most - side) for start, most in ((left, width), (top, height)))

        def window(image: Tensor) -> Tensor:
            return image[:, top : top + side, left : left + side]

        if boxes is not None:
            boxes = boxes - torch.tensor([left, top] * 2)
            outside = ((boxes[:, 1, :2] >= side) | (boxes[:, 1, 2:] <= 0)).any(-1)
            boxes = boxes.masked_fill(outside[:, None, None], torch.nan)
        masks = None if sample.masks is None else window(sample.masks)
        return replace(sample, before=window(sample.before), after=window(sample.after), boxes=boxes, masks=masks)

    def _places(self, sample: PairSample, draw: float) -> Tensor:
        """What the window may be around, x y ``(N, 2)``; none if it may be anywhere."""
        if draw < self.anywhere:
            return torch.empty(0, 2)
        boxes = torch.empty(0, 4) if sample.boxes is None else sample.boxes[:, 1]
        boxes = boxes[~boxes.isnan().any(-1)]
        if draw >= self.anywhere + self.mistaken:
            return (boxes[:, :2] + boxes[:, 2:]) / 2
        # in bytes: sixteen bits would need twice the memory
        differs = (torch.maximum(sample.before, sample.after) - torch.minimum(sample.before, sample.after) > 127).any(0)
        for x1, y1, x2, y2 in boxes.int().tolist():
            differs[max(0, y1 - 4) : y2 + 4, max(0, x1 - 4) : x2 + 4] = False
        blocks = F.avg_pool2d(differs[None].float(), 4)[0] > 0.9
        return blocks.nonzero().flip(1) * 4.0 + 2


class Jitter(PairTransform):
    """Brightness, contrast and tint of each image on its own: a distractor, since no caption speaks of it.

    Args:
        brightness: greatest factor away from 1.
        contrast: greatest factor away from 1.
        tint: greatest factor away from 1, per colour channel.
    """

    def __init__(self, brightness: float = 0.2, contrast: float = 0.2, tint: float = 0.05) -> None:
        for name, value in (("brightness", brightness), ("contrast", contrast), ("tint", tint)):
            _check_share(name, value)
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
