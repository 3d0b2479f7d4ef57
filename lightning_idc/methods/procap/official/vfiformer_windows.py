"""VFIformer's transformer, whose windows also attend to their surroundings at half the scale (Lu et al. 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from timm.models.swin_transformer import SwinTransformerBlock, WindowAttention, window_partition, window_reverse
from torch import Tensor, nn
from torch.nn import functional as F

HEADS, RATIO = 2, 2
DEPTHS = (3, 3, 3, 1)
"""Number of blocks in each of the two groups of a scale, from full resolution to an eighth of it. The last scale has no
attention to surroundings."""


def leaky() -> nn.LeakyReLU:
    """The activation of VFIformer."""
    return nn.LeakyReLU(0.2)


class CrossWindowAttention(WindowAttention):
    """Attention of a window to itself and, with the same queries, to its surroundings; both results are merged.

    Args:
        width: channels of the features.
        window: side of a window in pixels.
    """

    def __init__(self, width: int, window: int) -> None:
        super().__init__(width, HEADS, window_size=window)
        self.kv = nn.Linear(width, 2 * width)
        self.other_table = nn.Parameter(torch.zeros_like(self.relative_position_bias_table))
        self.merge1, self.merge2 = nn.Linear(2 * width, width), nn.Linear(width, width)

    def forward(  # type: ignore[override]  # the block below is its only caller
        self, x: Tensor, other: Tensor, masks: tuple[Tensor, Tensor] | tuple[None, None]
    ) -> Tensor:
        query, *window_kv = self._heads(self.qkv(x), 3)
        attended = self._attend(query, window_kv, self.relative_position_bias_table, masks[0])
        surrounding = self._attend(query, self._heads(self.kv(other), 2), self.other_table, masks[1])
        merged = self.merge1(torch.cat([attended, surrounding], -1))
        out: Tensor = self.proj(attended + self.merge2(F.leaky_relu(merged, 0.2)))
        return out

    @staticmethod
    def _heads(x: Tensor, parts: int) -> Sequence[Tensor]:
        """``(N, L, parts * C)`` to ``parts`` tensors ``(N, heads, L, C / heads)``."""
        return x.unflatten(-1, (parts, HEADS, -1)).permute(2, 0, 3, 1, 4).unbind(0)

    def _attend(self, query: Tensor, key_value: Sequence[Tensor], table: Tensor, mask: Tensor | None) -> Tensor:
        index: Tensor = self.relative_position_index  # type: ignore[assignment]  # a buffer of timm's
        bias = table[index].permute(2, 0, 1)[None]
        if mask is not None:
            bias = bias + mask.repeat(len(query) // len(mask), 1, 1)[:, None]
        key, value = key_value
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias).transpose(1, 2).flatten(2)


class CrossBlock(SwinTransformerBlock):
    """Swin block with :class:`CrossWindowAttention`.

    Args:
        width: channels of the features.
        window: side of a window in pixels.
        shift: number of pixels by which windows are shifted.
    """

    def __init__(self, width: int, window: int, shift: int) -> None:
        super().__init__(width, window, **_swin(window, shift))
        self.attn = CrossWindowAttention(width, window)

    def _attn(self, x: Tensor) -> Tensor:
        window, shift = self.window_size[0], self.shift_size[0]
        height, width = x.shape[1:3]
        shifted = torch.roll(x, (-shift, -shift), (1, 2))
        masks = self._masks(height, width, x) if shift else (None, None)
        attended = self.attn(
            window_partition(shifted, self.window_size).flatten(1, 2), surroundings(shifted, window), masks
        ).unflatten(1, (window, window))
        return torch.roll(window_reverse(attended, self.window_size, height, width), (shift, shift), (1, 2))

    def _masks(self, height: int, width: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Attention masks of windows and surroundings: -100 for pixels that are adjacent only because of the shift."""
        window, shift = self.window_size[0], self.shift_size[0]
        ends = [
            (torch.arange(side) >= side - window).int() + (torch.arange(side) >= side - shift).int()
            for side in (height, width)
        ]
        regions = (3 * ends[0][:, None] + ends[1]).to(like)[None, ..., None]
        window_regions = window_partition(regions, self.window_size).flatten(1)
        # at half the scale, region numbers are averaged across borders and then differ from all regions, as in the code
        keys = (window_regions, surroundings(regions, window)[..., 0])
        masks = [-100.0 * (key[:, None] != window_regions[:, :, None]) for key in keys]
        return masks[0].to(like), masks[1].to(like)


def surroundings(x: Tensor, window: int) -> Tensor:
    """Pixels in and around each window at half the scale, ``(B * windows, window * window, C)``.

    Args:
        x: ``(B, H, W, C)``.
        window: side of a window in pixels.
    """
    half = F.interpolate(x.permute(0, 3, 1, 2), scale_factor=0.5, mode="bilinear", align_corners=False)
    padded = F.pad(half, [window // 4] * 4, mode="reflect")
    patches = F.unfold(padded, window, stride=window // 2).unflatten(1, (x.shape[-1], -1))
    return patches.permute(0, 3, 2, 1).flatten(0, 1)


def _swin(window: int, shift: int) -> Any:
    """Options of timm's block; masks are computed for each image size."""
    return {
        "num_heads": HEADS,
        "window_size": window,
        "shift_size": shift,
        "always_partition": True,
        "dynamic_mask": True,
        "mlp_ratio": RATIO,
    }


class WindowGroup(nn.Module):
    """Swin blocks, every other one shifted by half a window, and a convolution, with a shortcut around all.

    Args:
        width: channels of the features.
        window: side of a window in pixels.
        depth: number of blocks.
        cross: whether windows attend to their surroundings.
    """

    def __init__(self, width: int, window: int, depth: int, cross: bool) -> None:
        super().__init__()
        shifts = [window // 2 * (index % 2) for index in range(depth)]
        self.blocks = nn.Sequential(
            *(
                CrossBlock(width, window, shift)
                if cross
                else SwinTransformerBlock(width, window, **_swin(window, shift))
                for shift in shifts
            )
        )
        self.conv = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(self.blocks(x).permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


class FusionTransformer(nn.Module):
    """U-shaped transformer over four scales; the warped features of both images are added at each scale.

    Args:
        context: channels of the warped features at full resolution; doubled at each further scale.
        width: channels of the transformer.
        window: side of a window in pixels.
    """

    def __init__(self, context: int, width: int, window: int) -> None:
        super().__init__()
        self.conv_first = nn.Conv2d(2 * context, width, 3, padding=1)
        self.norm_in, self.norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.scales = nn.ModuleList(
            nn.Sequential(WindowGroup(width, window, depth, False), WindowGroup(width, window, depth, depth > 1))
            for depth in DEPTHS
        )
        self.down = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width + 2 * context * 2**scale, width, 3, stride=2, padding=1),
                leaky(),
                nn.Conv2d(width, width, 3, padding=1),
                leaky(),
            )
            for scale in range(3)
        )
        self.up = nn.ModuleList(
            nn.Sequential(nn.ConvTranspose2d(channels, width, 4, stride=2, padding=1), leaky())
            for channels in (width + 16 * context, 2 * width, 2 * width)
        )
        self.conv_last1, self.conv_last2 = (
            nn.Sequential(nn.Conv2d(start, middle, 3, padding=1), leaky(), nn.Conv2d(middle, end, 3, padding=1))
            for start, middle, end in ((2 * width, width, width), (width, width // 2, 4))
        )

    def forward(self, fused: Tensor, contexts: Sequence[Tensor]) -> Tensor:
        """Logits of the residual image and of the mask, ``(N, 4, H, W)``.

        Args:
            fused: ``(N, 2 * context, H, W)``.
            contexts: for each scale, the warped features of both images, concatenated in the channels.
        """
        x = first = self.conv_first(fused)
        skips = []
        for scale, context, down in zip(self.scales, contexts, [*self.down, None], strict=True):
            x = self.norm(scale(self.norm_in(x.permute(0, 2, 3, 1)))).permute(0, 3, 1, 2)
            skips.append(x)
            x = x if down is None else down(torch.cat([x, context], 1))
        x = torch.cat([x, contexts[-1]], 1)
        for up, skip in zip(self.up, (*skips[2:0:-1], skips[0]), strict=True):
            x = torch.cat([up(x), skip], 1)
        logits: Tensor = self.conv_last2(self.conv_last1(x) + first)
        return logits
