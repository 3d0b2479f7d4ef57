"""Reading a pair as one image: a backbone of differences, and how often each kind of change occurs where."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_idc.errors import CheckpointError, check_number
from lightning_idc.nn.grid_backbone import GridBackbone, convolution, statistics


class DifferenceCNN(GridBackbone):
    """Reads both images of a registered pair at once, stride 16: a 640-pixel pair becomes a 40 x 40 grid.

    The first layer sees how bright the second image is, and by how much each pixel is brighter and darker than in the
    first one in any channel, so small changes are found at full resolution at the cost of one grey image. The camera
    must not move, and colours are not told apart. 0.18 M parameters.

    Args:
        width: channels of the features.
        in_channels: of the images.

    Example:
        >>> DifferenceCNN()(torch.zeros(1, 2, 3, 64, 96, dtype=torch.uint8)).shape
        torch.Size([1, 96, 4, 6])
    """

    reads_pairs: ClassVar[bool] = True

    def __init__(self, width: int = 96, in_channels: int = 3) -> None:
        super().__init__(width, *statistics(in_channels))
        self.layers = nn.Sequential(
            *convolution(3, 32, stride=4, kernel=4),
            *convolution(32, 48, stride=2),
            *convolution(48, 48),
            *convolution(48, width, stride=2),
            *convolution(width, width),
            *convolution(width, width, kernel=1),
        )

    def normalised(self, images: Tensor) -> Tensor:
        """Brightness, and greatest rise and fall of any channel, ``(N, 3, H, W)`` in [0, 1]."""
        before, after = images.to(torch.int16).unbind(1)
        change = after - before
        seen = torch.stack([after.amax(1), change.amax(1).clamp(min=0), change.amin(1).clamp(max=0).neg()], 1)
        return seen.to(self.mean.dtype) / 255

    def grid(self, images: Tensor) -> Tensor:
        return self.layers(images.contiguous(memory_format=torch.channels_last))


class CellCounts(nn.Module):
    """Counts the kinds of change that cells of a grid are named with, as tokens for a decoder.

    Probabilities of all cells are summed, over the image and over its regions; a cell at an edge between regions
    counts in both by its share. A linear layer reads a sum as its nearness to 0, 1, 2 ..., and each kind becomes a
    token.

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
        self.head = nn.Conv2d(channels, classes, 1)
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

    def forward(self, cells: Tensor) -> Tensor:
        """Tokens ``(B, kinds, width)``."""
        height, width = cells.shape[-2:]
        rows, columns = (_shares(side, self.regions).to(cells) for side in (height, width))
        regions = torch.einsum("bkhw,rh,cw->bkrc", cells, rows, columns).flatten(2)
        counts = torch.cat([cells.sum((2, 3))[..., None], regions], -1).clamp(max=self.max_count)
        steps = torch.arange(self.max_count + 1, device=cells.device)
        near = (1 - (counts[..., None] - steps).abs()).clamp(min=0)
        return self.embed(near.flatten(2)) + self.kind


def _shares(cells: int, regions: int) -> Tensor:
    """Share of each of the cells of a side that lies in each of its regions, ``(regions, cells)``."""
    edges = torch.arange(regions + 1) * cells / regions
    start = torch.arange(cells)
    inside = torch.minimum(edges[1:, None], start + 1.0) - torch.maximum(edges[:-1, None], start.float())
    return F.relu(inside)
