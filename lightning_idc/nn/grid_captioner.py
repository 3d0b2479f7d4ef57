"""GridCaptionNet: what networks share that read grids of features of both images and write with a causal decoder."""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor, nn

from lightning_idc.images.types import PairFeatures
from lightning_idc.nn.grid_backbone import GridBackbone
from lightning_idc.nn.transformer import Decoder, DecoderState
from lightning_idc.utils.errors import check_number

Net = TypeVar("Net", bound="GridCaptionNet")


class GridCaptionNet(nn.Module):
    """Holds the backbone; subclasses make :attr:`decoder` and write ``encode``.

    Args:
        backbone: gives the grid features of one image.
        grid: height and width of the grid for images of the training size; other sizes are pooled to it.
        freeze_backbone: train everything but the backbone, which then builds no graph.
    """

    decoder: Decoder

    def __init__(self, backbone: GridBackbone, grid: tuple[int, int], freeze_backbone: bool) -> None:
        super().__init__()
        for side in grid:
            check_number("grid", side, minimum=1)
        self.backbone, self.grid, self.frozen = backbone, grid, freeze_backbone
        if freeze_backbone:
            backbone.requires_grad_(False).eval()

    def train(self: Net, mode: bool = True) -> Net:
        super().train(mode)
        if self.frozen:
            self.backbone.eval()  # its batch statistics must stay what they were
        return self

    def maps(self, images: Tensor) -> Tensor:
        """What the backbone makes of uint8 pairs ``(B, 2, 3, H, W)``.

        Returns:
            ``(2 B, C, h, w)``, before and after of each pair; ``(B, C, h, w)`` by a backbone that reads pairs.
        """
        # without no_grad for a frozen one, which makes no graph anyway: an adapter behind it must be able to learn
        return self.backbone(images if self.backbone.reads_pairs else images.flatten(0, 1))

    def grids(self, images: Tensor) -> Tensor:
        """Grid features of uint8 pairs ``(B, 2, 3, H, W)``: ``(B, 2, cells, C)``."""
        return self.pooled(self.maps(images)).unflatten(0, (-1, 2))

    def pooled(self, maps: Tensor) -> Tensor:
        """Maps ``(N, C, h, w)`` as tokens of the cells of the grid, ``(N, cells, C)``."""
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
