"""NAMC's network: grid features of two images with co-attention, and a decoder (MIR and FDG).

:meth:`NamcNet.encode`, in the order of section 3.2:

1. compute the grid features of both images with the backbone,
2. replace masked cells by the mask embedding and project all cells (:meth:`MaskedImageEncoder.embed`),
3. encode both images in parallel streams, without attention to masked cells
   (:meth:`MaskedImageEncoder.encode_pair`), and
4. fuse the two tokens of each cell, which the decoder attends to.

Shapes: B pairs, P cells per image, C channels of the backbone, D channels of tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lightning_idc.images.types import PairFeatures
from lightning_idc.methods.namc.masked_encoder import MaskedImageEncoder
from lightning_idc.methods.namc.noise import resize_mask
from lightning_idc.nn.grid_backbone import GridBackbone
from lightning_idc.nn.grid_captioner import GridCaptionNet
from lightning_idc.nn.transformer import Decoder


class NamcNet(GridCaptionNet):
    """Captions pairs of images. In pre-training, some patches are masked.

    Args:
        backbone: network that computes the grid features of one image; frozen by default, as in the paper.
        grid: height and width of the grid for images of the training size; grids of other sizes are pooled to it.
        vocabulary: number of words.
        width: D, width of all tokens.
        encoder_layers: number of layers of the masked image encoder.
        decoder_layers: number of layers of the decoder.
        heads: number of attention heads.
        hidden: hidden width of the feed-forward layers.
        dropout: dropout probability.
        freeze_backbone: whether the backbone is frozen.
    """

    def __init__(
        self,
        backbone: GridBackbone,
        grid: tuple[int, int],
        vocabulary: int,
        width: int = 768,
        encoder_layers: int = 2,
        decoder_layers: int = 2,
        heads: int = 12,
        hidden: int = 3072,
        dropout: float = 0.1,
        freeze_backbone: bool = True,
    ) -> None:
        super().__init__(backbone, grid, freeze_backbone)
        cells = grid[0] * grid[1]
        self.encoder = MaskedImageEncoder(
            channels=backbone.width,
            width=width,
            cells=cells,
            layers=encoder_layers,
            heads=heads,
            hidden=hidden,
            dropout=dropout,
        )
        self.fuse = nn.Linear(2 * width, width)
        self.decoder = Decoder(vocabulary, width, layers=decoder_layers, heads=heads, hidden=hidden, dropout=dropout)

    def encode(self, images: Tensor, noise: Tensor | None = None) -> PairFeatures:
        """Features of pairs ``(B, P, D)``, one token per cell.

        Args:
            images: uint8 ``(B, 2, 3, H, W)``.
            noise: bool ``(B, 2, h, w)``, True at masked patches.
        """
        before, after = self.grids(images).unbind(1)  # (B, P, C) each
        masks: list[Tensor | None] = [None, None]
        if noise is not None:
            masks = list(resize_mask(noise, self.grid).flatten(2).unbind(1))  # (B, P) each
        first, second = self.encoder.embed(before, masks[0]), self.encoder.embed(after, masks[1])
        valid = [None if mask is None else ~mask for mask in masks]
        encoded = self.encoder.encode_pair(first, second, first_valid=valid[0], second_valid=valid[1])  # (B, P, D) each
        tokens = self.fuse(torch.cat(encoded, -1))  # (B, P, 2D) to (B, P, D)
        return PairFeatures(tokens, extras={"before": before, "after": after})
