"""Transforms of pairs: equal geometry for both images, separate lighting, and captions adapted to flips."""

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
from lightning_idc.utils.bounds import PositiveInt, PositiveShare, Share, check_arguments
from lightning_idc.utils.errors import ConfigError, DataError
from lightning_idc.utils.reprs import arguments_repr


class PairTransform(ABC):
    """Base class of transforms of a pair; all randomness comes from the ``generator`` argument."""

    @abstractmethod
    def __call__(self, sample: PairSample, generator: torch.Generator) -> PairSample: ...

    def __repr__(self) -> str:
        return arguments_repr(self)


def _uniform(generator: torch.Generator, low: float = 0.0, high: float = 1.0) -> float:
    return low + (high - low) * float(torch.rand((), generator=generator))


class Compose(PairTransform):
    """Composition of transforms.

    Args:
        transforms: transforms in the order of application.
    """

    def __init__(self, transforms: Sequence[PairTransform]) -> None:
        self.transforms = list(transforms)

    def __call__(self, sample: PairSample, generator: torch.Generator) -> PairSample:
        for transform in self.transforms:
            sample = transform(sample, generator)
        return sample


class Resize(PairTransform):
    """Resize images, boxes and masks; the aspect ratio may change.

    Args:
        size: height and width.
        interpolation: interpolation of the images.
    """

    def __init__(self, size: tuple[PositiveInt, PositiveInt], interpolation: Interpolation = "bilinear") -> None:
        check_arguments(Resize.__init__, locals())
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
            masks=None if sample.masks is None else resize_masks(sample.masks, self.size),
        )


def resize_masks(masks: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize masks with max pooling, so that small changes do not vanish."""
    height, width = masks.shape[1:]
    smaller = F.adaptive_max_pool2d(masks[None].float(), (min(height, size[0]), min(width, size[1])))
    return F.interpolate(smaller, size)[0] > 0.5


class Flip(PairTransform):
    """Flip both images horizontally, and swap left and right in the captions.

    Args:
        probability: probability of a horizontal flip.
        upside_down: probability of a vertical flip, for images taken from above.
    """

    def __init__(self, probability: Share = 0.5, upside_down: Share = 0.0) -> None:
        check_arguments(Flip.__init__, locals())
        self.probability, self.upside_down = probability, upside_down

    def __call__(self, sample: PairSample, generator: torch.Generator) -> PairSample:
        if _uniform(generator) < self.probability:
            flipped = not sample.meta.get("flipped", False)
            # the ground truth in meta still refers to the unflipped images
            sample = replace(_mirrored(sample, -1, swap_sides), meta={**sample.meta, "flipped": flipped})
        if self.upside_down and _uniform(generator) < self.upside_down:
            sample = _mirrored(sample, -2, swap_heights)
        return sample


def _mirrored(sample: PairSample, axis: int, words: Callable[[str], str]) -> PairSample:
    """Flip images, boxes and masks along an axis (-1 or -2), and convert the captions by ``words``."""
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
    """Random crop of both images with the same window, resized to the original size; captions are unchanged.

    Boxes outside the window become NaN. Use a large ``min_scale`` if captions mention positions or small objects.

    Args:
        min_scale: minimum size of the window relative to each side.
    """

    def __init__(self, min_scale: PositiveShare = 0.8) -> None:
        check_arguments(RandomCrop.__init__, locals())
        self.min_scale = min_scale

    def __call__(self, sample: PairSample, generator: torch.Generator) -> PairSample:
        height, width = sample.before.shape[1:]
        window_height, window_width = (
            max(1, round(side * _uniform(generator, self.min_scale))) for side in (height, width)
        )
        top = int(_uniform(generator, 0, height - window_height + 1))
        left = int(_uniform(generator, 0, width - window_width + 1))

        def window(image: Tensor) -> Tensor:
            return image[:, top : top + window_height, left : left + window_width]

        boxes = sample.boxes
        if boxes is not None:
            limits = torch.tensor([window_width, window_height] * 2, dtype=boxes.dtype)
            boxes = (boxes - torch.tensor([left, top] * 2)).clamp(min=torch.zeros(4), max=limits)
            outside = (boxes[..., 2:] <= boxes[..., :2]).any(-1, keepdim=True)
            boxes = boxes.masked_fill(outside, torch.nan)  # the box is outside the window
        cropped = replace(
            sample,
            before=window(sample.before),
            after=window(sample.after),
            boxes=boxes,
            masks=None if sample.masks is None else window(sample.masks),
        )
        return Resize((height, width))(cropped, generator)


class CropToChange(PairTransform):
    """Crop of both images around a change, without resizing; captions are unchanged.

    The change is at a random position in the window. For cell labels with sparse changes, this skips most of the
    unchanged area. A box that overlaps the window keeps its full extent; other boxes become NaN. Without boxes the
    window is random.

    Args:
        size: height and width of the window in pixels; at most those of the images.
        anywhere: fraction of random windows, which need not contain a change.
        mistaken: fraction of windows around hard negatives: 4 x 4 blocks that differ outside the boxes, if any.
    """

    def __init__(self, size: PositiveInt, anywhere: Share = 0.1, mistaken: Share = 0.0) -> None:
        check_arguments(CropToChange.__init__, locals())
        if not 0 <= anywhere + mistaken <= 1:
            raise ConfigError(
                f"anywhere and mistaken are {anywhere} and {mistaken}; expected fractions with a sum of at most 1"
            )
        self.size, self.anywhere, self.mistaken = size, anywhere, mistaken

    def __call__(self, sample: PairSample, generator: torch.Generator) -> PairSample:
        side, boxes = self.size, sample.boxes
        height, width = sample.before.shape[1:]
        if min(height, width) < side:
            raise DataError(f"pair {sample.id!r} is {width}x{height}; a window of {side}x{side} does not fit into it")
        draws = [_uniform(generator) for _ in range(4)]
        left, top = draws[0] * (width - side + 1), draws[1] * (height - side + 1)
        centres = self._centres(sample, draws[2])
        if len(centres):
            x, y = centres[int(draws[3] * len(centres))].tolist()
            left, top = x - draws[0] * side, y - draws[1] * side
        left, top = (min(max(int(start), 0), limit - side) for start, limit in ((left, width), (top, height)))

        def window(image: Tensor) -> Tensor:
            return image[:, top : top + side, left : left + side]

        if boxes is not None:
            boxes = boxes - torch.tensor([left, top] * 2)
            outside = ((boxes[:, 1, :2] >= side) | (boxes[:, 1, 2:] <= 0)).any(-1)
            boxes = boxes.masked_fill(outside[:, None, None], torch.nan)
        masks = None if sample.masks is None else window(sample.masks)
        return replace(sample, before=window(sample.before), after=window(sample.after), boxes=boxes, masks=masks)

    def _centres(self, sample: PairSample, draw: float) -> Tensor:
        """Candidate centres of the window, x and y, ``(N, 2)``; empty for a random window."""
        if draw < self.anywhere:
            return torch.empty(0, 2)
        boxes = torch.empty(0, 4) if sample.boxes is None else sample.boxes[:, 1]
        boxes = boxes[~boxes.isnan().any(-1)]
        if draw >= self.anywhere + self.mistaken:
            return (boxes[:, :2] + boxes[:, 2:]) / 2
        # in uint8, as int16 would need twice the memory
        is_different = (
            torch.maximum(sample.before, sample.after) - torch.minimum(sample.before, sample.after) > 127
        ).any(0)
        for x1, y1, x2, y2 in boxes.int().tolist():
            is_different[max(0, y1 - 4) : y2 + 4, max(0, x1 - 4) : x2 + 4] = False
        blocks = F.avg_pool2d(is_different[None].float(), 4)[0] > 0.9
        return blocks.nonzero().flip(1) * 4.0 + 2


class Jitter(PairTransform):
    """Vary brightness, contrast and tint of each image separately: a distractor that no caption mentions.

    Args:
        brightness: maximum deviation of the factor from 1.
        contrast: maximum deviation of the factor from 1.
        tint: maximum deviation of the factor from 1, per colour channel.
    """

    def __init__(self, brightness: Share = 0.2, contrast: Share = 0.2, tint: Share = 0.05) -> None:
        check_arguments(Jitter.__init__, locals())
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
