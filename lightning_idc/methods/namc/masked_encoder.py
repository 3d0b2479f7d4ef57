"""The masked image encoder E_M of NAMC (section 3.2.2), with two uses of the same layers:

- :meth:`MaskedImageEncoder.forward` reconstructs masked cells of an image with the help of a text (MIR), and
- :meth:`MaskedImageEncoder.encode_pair` encodes both images with co-attention (FDG).

Shapes: B images, P cells, C channels of grid features, D channels of tokens, M tokens of the partner.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lightning_idc.nn.attention import attend
from lightning_idc.nn.transformer import CrossLayer, merge_heads, split_heads

POSITION_STD = 0.3
"""Initial standard deviation of position embeddings, about that of the projected features."""


class MaskedImageLayer(CrossLayer):
    """Pre-norm self-attention, cross-attention to a partner (a text or the other image), and feed-forward."""

    def forward(self, x: Tensor, partner: Tensor, valid: Tensor | None, partner_valid: Tensor | None) -> Tensor:
        """Attend to the tokens themselves and to a partner: ``(B, P, D)``.

        Args:
            x: tokens ``(B, P, D)``.
            partner: text or other image, ``(B, M, D)``.
            valid: bool ``(B, P)``, True at cells that may be attended to; all cells when None.
            partner_valid: bool ``(B, M)``, True at partner tokens that may be attended to; all tokens when None.
        """
        q, k, v = (split_heads(part, self.heads) for part in self.qkv(self.norm_self(x)).chunk(3, -1))
        valid = _allow_all_if_none(valid)
        attended = attend(q, k, v, None if valid is None else valid[:, None, None])
        x = x + self._drop(self.out_self(merge_heads(attended)))
        x = self._cross(x, self.memory(partner), _allow_all_if_none(partner_valid))
        return x + self.feed(self.norm_feed(x))


def _allow_all_if_none(valid: Tensor | None) -> Tensor | None:
    # attention without any key would be NaN, so all keys are allowed if none is valid
    return None if valid is None else valid | ~valid.any(-1, keepdim=True)


class MaskedImageEncoder(nn.Module):
    """Embeds grid features, some of them masked, and encodes them with a text or with the other image.

    Args:
        channels: C, channels of the grid features.
        width: D, width of all tokens.
        cells: P, number of cells of the grid.
        layers: number of layers; both uses share them, as in the paper.
        heads: number of attention heads.
        hidden: hidden width of the feed-forward layers.
        dropout: dropout probability.
    """

    def __init__(
        self, channels: int, width: int, cells: int, layers: int, heads: int, hidden: int, dropout: float
    ) -> None:
        super().__init__()
        self.width = width
        self.mask_embedding = nn.Parameter(torch.zeros(channels))
        self.project = nn.Linear(channels, width)
        self.position = nn.Parameter(torch.empty(cells, width))
        self.layers = nn.ModuleList(MaskedImageLayer(width, heads, hidden, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.norm_partner = nn.LayerNorm(width)
        nn.init.normal_(self.mask_embedding, std=0.02)
        nn.init.normal_(self.position, std=POSITION_STD)

    def embed(self, features: Tensor, masked: Tensor | None = None) -> Tensor:
        """Tokens ``(B, P, D)`` of grid features.

        Args:
            features: ``(B, P, C)``.
            masked: bool ``(B, P)``, True at cells that the mask embedding e_M replaces.
        """
        if masked is None:
            # the mask embedding stays in the graph, so that distributed training without masks has no unused parameter
            masked = torch.zeros(features.shape[:2], dtype=torch.bool, device=features.device)
        features = torch.where(masked[..., None], self.mask_embedding.to(features.dtype), features)
        return self.project(features) + self.position

    def forward(self, tokens: Tensor, partner: Tensor, partner_valid: Tensor | None = None) -> Tensor:
        """Encode tokens with a fixed partner: ``(B, P, D)``. Masked cells attend and are attended to.

        Args:
            tokens: output of :meth:`embed`, ``(B, P, D)``.
            partner: text or other image, ``(B, M, D)``.
            partner_valid: bool ``(B, M)``, True at partner tokens that may be attended to.
        """
        partner = self.norm_partner(partner)
        for layer in self.layers:
            tokens = layer(tokens, partner, None, partner_valid)
        return self.norm(tokens)

    def encode_pair(
        self, first: Tensor, second: Tensor, first_valid: Tensor | None = None, second_valid: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Encode two images in parallel streams; in each layer, a stream attends to the other stream's input.

        Args:
            first: output of :meth:`embed` for the first image, ``(B, P, D)``.
            second: output of :meth:`embed` for the second image, ``(B, P, D)``.
            first_valid: bool ``(B, P)``, True at cells of the first image that may be attended to; all when None.
            second_valid: bool ``(B, P)``, for the second image.
        """
        for layer in self.layers:
            first, second = (
                layer(first, self.norm_partner(second), first_valid, second_valid),
                layer(second, self.norm_partner(first), second_valid, first_valid),
            )
        return self.norm(first), self.norm(second)
