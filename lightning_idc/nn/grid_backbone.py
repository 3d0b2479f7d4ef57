"""GridBackbone: base of networks that map images to grids of features."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import torch
from torch import Tensor, nn

from lightning_idc.utils.bounds import PositiveInt, check_arguments
from lightning_idc.utils.errors import ConfigError, DataError

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class GridBackbone(nn.Module, ABC):
    """Maps uint8 images ``(N, C, H, W)`` to features ``(N, width, h, w)``; subclasses implement :meth:`grid`.

    A backbone with ``reads_pairs`` maps pairs ``(N, 2, C, H, W)`` to features of the pair.

    Args:
        width: channels of the features.
        mean: mean of each channel of images in [0, 1].
        std: standard deviation of each channel.
    """

    mean: Tensor
    std: Tensor
    reads_pairs: ClassVar[bool] = False

    def __init__(
        self, width: PositiveInt, mean: tuple[float, ...] = IMAGENET_MEAN, std: tuple[float, ...] = IMAGENET_STD
    ) -> None:
        check_arguments(GridBackbone.__init__, locals())
        super().__init__()
        self.width, self._once = width, False
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1) * 255, persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1) * 255, persistent=False)

    @abstractmethod
    def grid(self, images: Tensor) -> Tensor:
        """Features of normalised images."""

    @property
    def in_channels(self) -> int:
        """Channels of the images."""
        return len(self.mean)

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[-3] != self.in_channels:
            raise DataError(
                f"images have {images.shape[-3]} channels; the backbone expects {self.in_channels}; choose the data "
                f"module's `bands`, or set in_channels: {images.shape[-3]}"
            )
        if not self._once or self.reads_pairs:
            return self.grid(self.normalised(images))
        index_of: dict[bytes, int] = {}
        rows = [index_of.setdefault(image.numpy().tobytes(), len(index_of)) for image in images.cpu()]
        first = [rows.index(row) for row in range(len(index_of))]
        return self.grid(self.normalised(images[first]))[rows]

    @contextmanager
    def each_image_once(self) -> Iterator[None]:
        """Context in which equal images of a batch are encoded once."""
        self._once = True
        try:
            yield
        finally:
            self._once = False

    def normalised(self, images: Tensor) -> Tensor:
        """Normalise uint8 images for :meth:`grid`."""
        return (images.to(self.mean.dtype) - self.mean) / self.std


class ConvolutionalBackbone(GridBackbone):
    """A backbone of convolutional ``layers``; images are in channels-last format, for speed."""

    layers: nn.Sequential

    def grid(self, images: Tensor) -> Tensor:
        return self.layers(images.contiguous(memory_format=torch.channels_last))


def convolution(inputs: int, outputs: int, stride: int = 1, kernel: int = 3) -> list[nn.Module]:
    """Convolution, batch norm and ReLU; the size of images is divided by the stride."""
    padding = (kernel - 1) // 2 if kernel % 2 else 0
    layer = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=padding, bias=False)
    return [layer, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]


class Residual(nn.Module):
    """Residual block of one convolution.

    Args:
        channels: channels of the features.
        dilation: dilation of the convolution.
    """

    def __init__(self, channels: int, dilation: int = 1) -> None:
        super().__init__()
        layer = nn.Conv2d(channels, channels, 3, padding=dilation, dilation=dilation, bias=False)
        self.added = nn.Sequential(layer, nn.BatchNorm2d(channels))

    def forward(self, features: Tensor) -> Tensor:
        return nn.functional.relu(features + self.added(features))


def statistics(
    channels: int, mean: tuple[float, ...] = IMAGENET_MEAN, std: tuple[float, ...] = IMAGENET_STD
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of images: ImageNet's for three channels, 0.5 and 0.25 for others.

    Raises:
        ConfigError: the number of channels is below 1.
    """
    if channels < 1:
        raise ConfigError(f"in_channels is {channels}; expected at least 1")
    return (mean, std) if channels == len(mean) else ((0.5,) * channels, (0.25,) * channels)
