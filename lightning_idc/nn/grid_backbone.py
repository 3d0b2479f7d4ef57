"""GridBackbone: base of networks that map images to grids of features."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

import torch
from torch import Tensor, nn

from lightning_idc.utils.bounds import PositiveInt, check_arguments
from lightning_idc.utils.errors import ConfigError, DataError

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


MapsRewrite = Callable[[list[Tensor]], Tensor]
"""Maps features ``(N, C, h, w)`` of several depths, the deepest last, to the new features ``(N, width, h, w)``."""


class GridBackbone(nn.Module, ABC):
    """Maps uint8 images ``(N, C, H, W)`` to features ``(N, width, h, w)``; subclasses implement :meth:`grid`.

    A backbone with ``reads_pairs`` maps pairs ``(N, 2, C, H, W)`` to features of the pair. One with several depths
    overrides :attr:`depth_widths` and :meth:`grids`, from which MDP reads (M3Diff, section 4.2).

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
        self._rewrite: tuple[list[int], MapsRewrite] | None = None
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1) * 255, persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1) * 255, persistent=False)

    @abstractmethod
    def grid(self, images: Tensor) -> Tensor:
        """Features of normalised images."""

    @property
    def depth_widths(self) -> list[int]:
        """Channels of the features at each depth; the last depth is the output."""
        return [self.width]

    def grids(self, images: Tensor, depths: Sequence[int]) -> list[Tensor]:
        """Features ``(N, C, h, w)`` of normalised images at some depths, from 1, in increasing order.

        Grids of lower depths may be finer.
        """
        return [self.grid(images) for _ in depths]

    def rewrite_features(self, depths: Sequence[int], rewrite: MapsRewrite) -> None:
        """Replace the output by ``rewrite(features at the depths)``; the last depth is the output."""
        self._rewrite = (list(depths), rewrite)

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
            return self._rewritten(self._maps(images))
        index_of: dict[bytes, int] = {}
        rows = [index_of.setdefault(image.numpy().tobytes(), len(index_of)) for image in images.cpu()]
        first = [rows.index(row) for row in range(len(index_of))]
        return self._rewritten([maps[rows] for maps in self._maps(images[first])])

    def _maps(self, images: Tensor) -> list[Tensor]:
        """Features at the depths that are rewritten, or of the last one alone."""
        normalised = self.normalised(images)
        return [self.grid(normalised)] if self._rewrite is None else self.grids(normalised, self._rewrite[0])

    def _rewritten(self, maps: list[Tensor]) -> Tensor:
        return maps[-1] if self._rewrite is None else self._rewrite[1](maps)

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
    """A backbone of convolutional ``layers``, each of them a depth; images are in channels-last format, for speed."""

    layers: nn.Sequential

    def grid(self, images: Tensor) -> Tensor:
        return self.layers(images.contiguous(memory_format=torch.channels_last))

    @property
    def depth_widths(self) -> list[int]:
        widths = []
        for layer in self.layers:
            if isinstance(layer, nn.Conv2d):
                widths.append(layer.out_channels)
            elif isinstance(layer, Residual):
                widths.append(widths[-1])
        return widths

    def grids(self, images: Tensor, depths: Sequence[int]) -> list[Tensor]:
        x, maps = images.contiguous(memory_format=torch.channels_last), []
        for layer in self.layers:
            x = layer(x)
            if isinstance(layer, (nn.ReLU, Residual)):  # a convolution ends with its ReLU
                maps.append(x)
        return [maps[depth - 1] for depth in depths]


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
