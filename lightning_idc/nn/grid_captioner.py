"""GridCaptionNet: base of networks with a grid backbone of both images and a causal decoder."""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor, nn

from lightning_idc.images.types import PairFeatures
from lightning_idc.nn.grid_backbone import GridBackbone
from lightning_idc.nn.transformer import Decoder, DecoderState
from lightning_idc.utils.bounds import PositiveInt, check_arguments

Net = TypeVar("Net", bound="GridCaptionNet")


class GridCaptionNet(nn.Module):
    """Backbone and decoding; subclasses create :attr:`decoder` and implement ``encode``.

    Args:
        backbone: network that maps images, or pairs, to grid features.
        grid: height and width of the grid for images of the training size; other sizes are pooled to it.
        freeze_backbone: whether the backbone is frozen.
    """

    decoder: Decoder

    def __init__(self, backbone: GridBackbone, grid: tuple[PositiveInt, PositiveInt], freeze_backbone: bool) -> None:
        check_arguments(GridCaptionNet.__init__, locals())
        super().__init__()
        self.backbone, self.grid, self.frozen = backbone, grid, freeze_backbone
        if freeze_backbone:
            backbone.requires_grad_(False).eval()

    def train(self: Net, mode: bool = True) -> Net:
        super().train(mode)
        if self.frozen:
            self.backbone.eval()  # keeps the running statistics of batch norm
        return self

    def maps(self, images: Tensor) -> Tensor:
        """Feature maps of uint8 pairs ``(B, 2, 3, H, W)``.

        Returns:
            ``(2 B, C, h, w)``, before and after of each pair; ``(B, C, h, w)`` of a backbone that reads pairs.
        """
        # no torch.no_grad(), even if frozen: its adapters may be trained
        return self.backbone(images if self.backbone.reads_pairs else images.flatten(0, 1))

    def grids(self, images: Tensor) -> Tensor:
        """Grid features of uint8 pairs ``(B, 2, 3, H, W)``: ``(B, 2, cells, C)``."""
        return self.pooled(self.maps(images)).unflatten(0, (-1, 2))

    def pooled(self, maps: Tensor) -> Tensor:
        """Flatten maps ``(N, C, h, w)``, pooled to the grid, to tokens ``(N, cells, C)``."""
        if maps.shape[-2:] != self.grid:
            maps = nn.functional.adaptive_avg_pool2d(maps, self.grid)
        return maps.flatten(2).mT

    def logits(self, features: PairFeatures, tokens: Tensor) -> Tensor:
        """Logits ``(B, K, T, V)`` of the token after each of ``tokens (B, K, T)``."""
        return self.decoder(features.memory, features.mask, tokens)

    def start(self, features: PairFeatures) -> DecoderState:
        """State before the first token."""
        return self.decoder.start(features.memory, features.mask)

    def step(self, state: DecoderState, tokens: Tensor) -> Tensor:
        """Logits ``(N, V)`` after tokens ``(N,)``; advances the state."""
        return self.decoder.step(state, tokens)
