"""PairTransformerNet: grid features of both images, fused cell by cell, then a transformer.

A small version of the "static pair" baseline of ProCap's ablation (no frames between the images):

1. ``maps`` and ``pooled``: images (B, 2, 3, H, W) -> a grid of features per image, (B, cells, channels);
2. ``fuse``: before, after, after - before and the coordinates of each cell -> one token per cell, (B, cells, width);
3. ``encoder``: self-attention over the cells -> memory (B, cells, width);
4. ``decoder``: memory -> caption.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lightning_idc.images.types import PairFeatures
from lightning_idc.nn.differencing import CellCounts
from lightning_idc.nn.grid_backbone import GridBackbone
from lightning_idc.nn.grid_captioner import GridCaptionNet
from lightning_idc.nn.relative_position import RelativePositionBias
from lightning_idc.nn.transformer import Decoder, EncoderLayer, check_heads
from lightning_idc.utils.bounds import NonNegativeInt, check_arguments
from lightning_idc.utils.errors import ConfigError


class PairTransformerNet(GridCaptionNet):
    """Captions pairs of images.

    Args:
        backbone: computes the grid features of one image.
        grid: height and width of the grid for images of the training size; other sizes are pooled to it.
        vocabulary: number of words.
        width: channels of all tokens.
        encoder_layers: self-attention layers over the grid.
        decoder_layers: layers of the caption decoder.
        heads: attention heads.
        dropout: dropout probability.
        freeze_backbone: train everything but the backbone, which then builds no graph.
        counts: number of classes of the cells, "nothing changed" included; the decoder then reads the number of cells
            of each class, in total and per region, instead of the grid. 0 decodes from the grid.
    """

    def __init__(
        self,
        backbone: GridBackbone,
        grid: tuple[int, int],
        vocabulary: int,
        width: int = 128,
        encoder_layers: NonNegativeInt = 2,
        decoder_layers: int = 2,
        heads: int = 4,
        dropout: float = 0.1,
        freeze_backbone: bool = False,
        counts: int = 0,
    ) -> None:
        check_arguments(PairTransformerNet.__init__, locals())
        super().__init__(backbone, grid, freeze_backbone)
        if counts and not backbone.reads_pairs:
            raise ConfigError(
                f"counts is {counts}, but the backbone reads images one by one; set backbone to 'difference'"
            )
        if counts and not freeze_backbone:
            raise ConfigError(
                f"counts is {counts} and freeze_backbone false; counts have no gradient, so nothing would train the "
                "backbone: freeze it, and set backbone_weights to those of a ChangeNaming"
            )
        check_heads(width, heads)
        self.counts = CellCounts(backbone.width, counts, width) if counts else None
        if not counts:
            self.register_buffer("coordinates", _coordinates(grid), persistent=False)
            channels = backbone.width if backbone.reads_pairs else 3 * backbone.width
            self.fuse = nn.Sequential(nn.Linear(channels + 2, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            self.place = nn.Parameter(torch.zeros(grid[0] * grid[1], width))
            self.bias = RelativePositionBias(heads, grid)
        self.encoder = nn.ModuleList(EncoderLayer(width, heads, 2 * width, dropout) for _ in range(encoder_layers))
        self.norm = nn.LayerNorm(width)
        self.decoder = Decoder(vocabulary, width, layers=decoder_layers, heads=heads, hidden=2 * width, dropout=dropout)

    def encode(self, images: Tensor) -> PairFeatures:
        """Features of uint8 pairs ``(B, 2, 3, H, W)``: one token per cell, or one per counted class."""
        maps = self.maps(images)
        if self.counts is not None:
            cells = self.counts.cells(maps)
            return self._encode_tokens(self.counts(cells), None, {"cells": cells})
        grids, extras = self.pooled(maps), {}
        if self.backbone.reads_pairs:
            parts = [grids]  # (B, cells, channels)
        else:
            before, after = grids.unflatten(0, (-1, 2)).unbind(1)  # (2B, cells, channels) -> (B, cells, channels) each
            parts, extras = [before, after, after - before], {"before": before, "after": after}
        coordinates = self.coordinates.expand(images.shape[0], -1, -1)  # type: ignore[operator]
        tokens = self.fuse(torch.cat([*parts, coordinates], -1)) + self.place  # (B, cells, width)
        return self._encode_tokens(tokens, self.bias(), extras)

    def _encode_tokens(self, tokens: Tensor, bias: Tensor | None, extras: dict[str, Tensor]) -> PairFeatures:
        """Self-attention over tokens ``(B, cells, width)``."""
        for layer in self.encoder:
            tokens = layer(tokens, bias)
        return PairFeatures(self.norm(tokens), extras=extras)


def _coordinates(grid: tuple[int, int]) -> Tensor:
    """Centres of the cells in [-1, 1], ``(cells, 2)`` as y x."""
    axes = [(torch.arange(count) + 0.5) / count * 2 - 1 for count in grid]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).view(-1, 2)
