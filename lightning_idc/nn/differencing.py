"""Reading a pair as one image: a backbone of differences, and how often each kind of change occurs where."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_idc.nn.grid_backbone import ConvolutionalBackbone, Residual, convolution, statistics
from lightning_idc.nn.peaks import peaks
from lightning_idc.nn.registration import registered
from lightning_idc.utils.errors import CheckpointError, check_number


class DifferenceCNN(ConvolutionalBackbone):
    """Reads both images of a pair at once, stride 8: a 640-pixel pair becomes an 80 x 80 grid.

    The first layer sees how bright the second image is, and by how much each pixel is brighter and darker than in the
    first one in any channel, so small changes are found at full resolution at the cost of one grey image. In evaluation
    the first image is laid onto the second one before (:func:`~lightning_idc.nn.registration.registered`), so the
    camera may move by a few pixels; by more it must not. Colours are not told apart. 0.24 M parameters.

    Args:
        width: channels of the features.
        in_channels: of the images.

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
        """Brightness, and greatest rise and fall of any channel, ``(N, 3, H, W)`` in [0, 1]."""
        # in training it stays where it is: windows of a board fit better than whole boards, of which parts are left a
        # pixel apart, and what never saw that in training takes such edges for changes
        images = images if self.training else registered(images)
        before, after = images.unbind(1)
        # in bytes: wider integers would need more memory, and onnxruntime finds no extremes of sixteen bits
        brighter = torch.maximum(before, after)
        seen = torch.stack([after.amax(1), (brighter - before).amax(1), (brighter - after).amax(1)], 1)
        return seen.to(self.mean.dtype) / 255


class CellCounts(nn.Module):
    """Counts the kinds of change that cells of a grid are named with, as tokens for a decoder.

    Single changes are found as peaks of the probability that a cell has changed, and each is of the kind that is
    likeliest there. Their numbers, in the image and in its regions, are exact integers that are looked up in an
    embedding; each kind becomes a token. The layer that names cells stays what the pre-training made of it.

    Args:
        channels: of the grid's features.
        classes: that cells are named with, "nothing changed" as the first one included.
        width: of the tokens.
        regions: along each side.
        max_count: larger counts are read as this one.
    """

    def __init__(self, channels: int, classes: int, width: int, regions: int = 3, max_count: int = 8) -> None:
        super().__init__()
        check_number("counts", classes, minimum=2)
        check_number("regions", regions, minimum=1)
        self.regions, self.max_count = regions, max_count
        self.head = nn.Conv2d(channels, classes, 1).requires_grad_(False)
        self.embed = nn.Linear((1 + regions**2) * (max_count + 1), width)
        self.kind = nn.Parameter(torch.empty(classes - 1, width))
        nn.init.normal_(self.kind, std=0.2)  # zeros would make all kinds alike at first

    def load_head(self, state: Mapping[str, Tensor], source: str) -> None:
        """Take the layer that names cells from the weights of a pre-training.

        Args:
            state: weights by name.
            source: of the weights, for messages.

        Raises:
            CheckpointError: they hold none, or one of other classes.
        """
        found = {name: state[f"net.head.{name}"] for name in ("weight", "bias") if f"net.head.{name}" in state}
        own = {name: tuple(value.shape) for name, value in self.head.state_dict().items()}
        if {name: tuple(value.shape) for name, value in found.items()} != own:
            kinds = len(found["bias"]) if "bias" in found else "no"
            raise CheckpointError(
                f"{source!r} names {kinds} classes of cells; counts is {len(self.kind) + 1}. Expected a checkpoint of "
                "ChangeNaming on the same backbone with as many classes"
            )
        self.head.load_state_dict(found)

    def cells(self, maps: Tensor) -> Tensor:
        """Probability of each kind of change ``(B, kinds, h, w)`` in the cells of maps ``(B, channels, h, w)``."""
        return self.head(maps).softmax(1)[:, 1:]

    def counts(self, cells: Tensor) -> Tensor:
        """Numbers of changes of each kind, in the image and in its regions row by row, int64 ``(B, kinds, 1 + R)``."""
        places, centres, _ = peaks(cells.sum(1))
        image, rows, columns = places[:, :, None].unbind(1)
        near = torch.arange(9, device=cells.device)
        # of each peak and its neighbours (peaks, 9, kinds)
        around = F.pad(cells, [1] * 4)[image, :, rows + near // 3, columns + near % 3]
        sides = torch.tensor(cells.shape[-2:], device=cells.device)
        down, across = (centres / sides * self.regions).long().clamp(0, self.regions - 1).unbind(-1)
        where = places[:, 0], around.sum(1).argmax(1), down * self.regions + across
        parts = torch.zeros(*cells.shape[:2], self.regions**2, dtype=torch.long, device=cells.device)
        parts.index_put_(where, torch.ones_like(down), accumulate=True)
        return torch.cat([parts.sum(-1, keepdim=True), parts], -1)

    def forward(self, cells: Tensor) -> Tensor:
        """Tokens ``(B, kinds, width)``."""
        counts = self.counts(cells).clamp(max=self.max_count)
        return self.embed(F.one_hot(counts, self.max_count + 1).flatten(2).to(self.kind)) + self.kind
