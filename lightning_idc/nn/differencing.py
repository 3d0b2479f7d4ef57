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
    """Reads both images of a pair at once, stride 8: a 640-pixel pair becomes an 80 x 80 grid.

    The input of the first layer is the brightness of the second image, and the maximum rise and fall of any channel at
    each pixel, so that small changes are visible at full resolution at the cost of one grey image. In evaluation the
    first image is registered to the second one before (:func:`~lightning_idc.nn.registration.registered`), so that the
    camera may move by a few pixels. Colours are not distinguished. 0.24 M parameters.

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
        """Brightness, and maximum rise and fall of any channel, ``(N, 3, H, W)`` in [0, 1]."""
        # not registered in training: crops of a board align better than full boards, parts of which stay a pixel apart,
        # and a network that never saw such edges in training takes them for changes
        images = images if self.training else registered(images)
        before, after = images.unbind(1)
        # in uint8: wider integers need more memory, and onnxruntime has no maximum of int16
        brighter = torch.maximum(before, after)
        channels = torch.stack([after.amax(1), (brighter - before).amax(1), (brighter - after).amax(1)], 1)
        return channels.to(self.mean.dtype) / 255


class CellCounts(nn.Module):
    """Counts changes by kind, as tokens for a decoder.

    Changes are peaks of the change probability of cells; each has the most likely kind of its cell. Their numbers in
    the image and in its regions are integers with an embedding; each kind is a token. The classifier of cells is that
    of the pre-training and stays frozen.

    Args:
        channels: channels of the grid's features.
        classes: number of classes of cells, the first of which is "nothing changed".
        width: width of the tokens.
        regions: number of regions along each side.
        max_count: maximum count; larger counts are equal to it.
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
        """Load the classifier of cells from the weights of a pre-training, or of a captioner that counts.

        Args:
            state: weights of a ChangeNaming or of a PairTransformer, by name.
            source: path of the weights, for messages.

        Raises:
            CheckpointError: the classifier is missing or has other classes.
        """
        prefix = "net.counts.head." if "net.counts.head.weight" in state else "net.head."
        weights = {name: state[f"{prefix}{name}"] for name in ("weight", "bias") if f"{prefix}{name}" in state}
        shapes = {name: tuple(value.shape) for name, value in self.head.state_dict().items()}
        if {name: tuple(value.shape) for name, value in weights.items()} != shapes:
            kinds = len(weights["bias"]) if "bias" in weights else "no"
            raise CheckpointError(
                f"{source!r} names {kinds} classes of cells; counts is {len(self.kind) + 1}. Expected a checkpoint of "
                "ChangeNaming on the same backbone with as many classes"
            )
        self.head.load_state_dict(weights)

    def cells(self, maps: Tensor) -> Tensor:
        """Probability of each kind of change ``(B, kinds, h, w)`` in the cells of maps ``(B, channels, h, w)``."""
        return self.head(maps).softmax(1)[:, 1:]

    def counts(self, cells: Tensor) -> Tensor:
        """Numbers of changes of each kind, in the image and in its regions row by row, int64 ``(B, kinds, 1 + R)``."""
        positions, centres, _ = peaks(cells.sum(1))
        image, rows, columns = positions[:, :, None].unbind(1)
        neighbours = torch.arange(9, device=cells.device)
        # each peak and its neighbours, (peaks, 9, kinds)
        windows = F.pad(cells, [1] * 4)[image, :, rows + neighbours // 3, columns + neighbours % 3]
        sides = torch.tensor(cells.shape[-2:], device=cells.device)
        down, across = (centres / sides * self.regions).long().clamp(0, self.regions - 1).unbind(-1)
        index = positions[:, 0], windows.sum(1).argmax(1), down * self.regions + across
        parts = torch.zeros(*cells.shape[:2], self.regions**2, dtype=torch.long, device=cells.device)
        parts.index_put_(index, torch.ones_like(down), accumulate=True)
        return torch.cat([parts.sum(-1, keepdim=True), parts], -1)

    def forward(self, cells: Tensor) -> Tensor:
        """Tokens ``(B, kinds, width)``."""
        counts = self.counts(cells).clamp(max=self.max_count)
        return self.embed(F.one_hot(counts, self.max_count + 1).flatten(2).to(self.kind)) + self.kind
