"""DifferenceCNN, a backbone that reads a pair as one image, and CellCounts, which counts changes by kind and region."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_idc.nn.grid_backbone import ConvolutionalBackbone, Residual, convolution, statistics
from lightning_idc.nn.peaks import peaks
from lightning_idc.nn.registration import registered
from lightning_idc.utils.bounds import PositiveInt, TwoOrMore, check_arguments
from lightning_idc.utils.errors import CheckpointError


class DifferenceCNN(ConvolutionalBackbone):
    """Convolutional backbone of image pairs with stride 8: a 640-pixel pair becomes an 80 x 80 grid.

    1. Registration of the first image to the second one, in evaluation only
       (:func:`~lightning_idc.nn.registration.registered`), as the camera may move by a few pixels.
    2. Brightness of the second image, and the maximum increase and decrease of any channel at each pixel,
       ``(B, 3, H, W)``: small changes are visible at full resolution, colours are not distinguished.
    3. Convolutions, ``(B, width, H / 8, W / 8)``. 0.24 M parameters.

    Args:
        width: channels of the features.
        in_channels: channels of the images.

    Example:
        >>> DifferenceCNN()(torch.zeros(1, 2, 3, 64, 96, dtype=torch.uint8)).shape
        torch.Size([1, 32, 8, 12])
    """

    reads_pairs: ClassVar[bool] = True

    def __init__(self, width: int = 32, in_channels: int = 3) -> None:
        super().__init__(width, *statistics(in_channels))
        self.layers = nn.Sequential(
            *convolution(3, 48, stride=4, kernel=4),
            Residual(48),
            *convolution(48, 96, stride=2),
            Residual(96),
            Residual(96, dilation=2),
            *convolution(96, width, kernel=1),
        )

    def normalised(self, images: Tensor) -> Tensor:
        """Brightness, and maximum increase and decrease of any channel, ``(N, 3, H, W)`` in [0, 1]."""
        # not registered in training: crops of a board align better than full boards, where parts remain a pixel apart,
        # and a network trained without such edges takes them for changes
        images = images if self.training else registered(images)
        before, after = images.unbind(1)
        # in uint8: wider integers need more memory, and onnxruntime has no maximum of int16
        brighter = torch.maximum(before, after)
        channels = torch.stack([after.amax(1), (brighter - before).amax(1), (brighter - after).amax(1)], 1)
        return channels.to(self.mean.dtype) / 255


class CellCounts(nn.Module):
    """Counts changes by kind, and embeds the counts as tokens for a decoder.

    1. The classifier of cells from pre-training, frozen: ``(B, C, h, w)`` to ``(B, kinds, h, w)`` (:meth:`cells`).
    2. Changes are peaks of the change probability, each with the most likely kind around it; they are counted in the
       image and in each of R regions: ``(B, kinds, 1 + R)`` (:meth:`counts`).
    3. One token per kind with an embedding of its counts: ``(B, kinds, width)`` (:meth:`forward`).

    Args:
        channels: channels of the feature map.
        classes: number of classes of cells; the first is "nothing changed".
        width: width of the tokens.
        regions: number of regions along each side of the image.
        max_count: maximum count; larger ones are clamped to it.
    """

    def __init__(
        self, channels: int, classes: TwoOrMore, width: int, regions: PositiveInt = 3, max_count: int = 8
    ) -> None:
        check_arguments(CellCounts.__init__, locals())
        super().__init__()
        self.regions, self.max_count = regions, max_count
        self.head = nn.Conv2d(channels, classes, 1).requires_grad_(False)
        self.embed = nn.Linear((1 + regions**2) * (max_count + 1), width)
        self.kind = nn.Parameter(torch.empty(classes - 1, width))
        nn.init.normal_(self.kind, std=0.2)  # with zeros all kinds would start equal

    def load_head(self, state: Mapping[str, Tensor], source: str) -> None:
        """Load the classifier of cells from the weights of a pre-trained model, or of a captioner with counts.

        Args:
            state: state dict of a ChangeNaming or a PairTransformer.
            source: path of the weights, for messages.

        Raises:
            CheckpointError: the classifier is missing or has other classes.
        """
        prefix = "net.counts.head." if "net.counts.head.weight" in state else "net.head."
        weights = {name: state[f"{prefix}{name}"] for name in ("weight", "bias") if f"{prefix}{name}" in state}
        shapes = {name: tuple(value.shape) for name, value in self.head.state_dict().items()}
        if {name: tuple(value.shape) for name, value in weights.items()} != shapes:
            num_classes = len(weights["bias"]) if "bias" in weights else "no"
            raise CheckpointError(
                f"{source!r} has {num_classes} classes of cells; counts is {len(self.kind) + 1}. Expected a checkpoint "
                "of ChangeNaming on the same backbone with as many classes"
            )
        self.head.load_state_dict(weights)

    def cells(self, maps: Tensor) -> Tensor:
        """Probability of each kind of change in each cell: ``(B, channels, h, w)`` to ``(B, kinds, h, w)``."""
        return self.head(maps).softmax(1)[:, 1:]

    def counts(self, cells: Tensor) -> Tensor:
        """Counts of each kind of change in the image and in its regions, row by row: int64 ``(B, kinds, 1 + R)``."""
        positions, centres, _ = peaks(cells.sum(1))  # (P, 3), (P, 2)
        image, rows, columns = positions[:, :, None].unbind(1)
        neighbours = torch.arange(9, device=cells.device)
        # each peak and its neighbours, (P, 9, kinds)
        windows = F.pad(cells, [1] * 4)[image, :, rows + neighbours // 3, columns + neighbours % 3]
        size = torch.tensor(cells.shape[-2:], device=cells.device)
        region_row, region_column = (centres / size * self.regions).long().clamp(0, self.regions - 1).unbind(-1)
        index = positions[:, 0], windows.sum(1).argmax(1), region_row * self.regions + region_column
        by_region = torch.zeros(*cells.shape[:2], self.regions**2, dtype=torch.long, device=cells.device)
        by_region.index_put_(index, torch.ones_like(region_row), accumulate=True)
        return torch.cat([by_region.sum(-1, keepdim=True), by_region], -1)

    def forward(self, cells: Tensor) -> Tensor:
        """Tokens ``(B, kinds, width)``."""
        counts = self.counts(cells).clamp(max=self.max_count)
        return self.embed(F.one_hot(counts, self.max_count + 1).flatten(2).to(self.kind)) + self.kind
