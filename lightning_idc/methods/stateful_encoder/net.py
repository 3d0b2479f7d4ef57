"""Cross-image layer of the stateful visual encoder (arXiv 2606.04433), added after each layer of a vision tower.

1. The second image attends to the states of the first image at the same depth,
2. a feed-forward layer follows, and
3. both are residuals whose last linear map starts at 0, so that an untrained layer changes nothing.

Shapes: ``(B, 2, L, D)`` are B pairs, the first and the second image, L patches, D channels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lightning_idc.methods.m3diff.mdp import Attention
from lightning_idc.nn.transformer import FeedForward
from lightning_idc.utils.bounds import PositiveInt, check_arguments, check_fields
from lightning_idc.utils.errors import ConfigError


@dataclass(frozen=True, slots=True)
class StatefulEncoderOptions:
    """Options of :class:`CrossImageLayer`.

    Args:
        heads: number of attention heads; the largest divisor of the features' width up to 16 when None.
        hidden: hidden width of the feed-forward layer; twice the features' width when None.
        detach_previous: whether the states of the first image are detached, as in the paper.
        control: whether the second image attends to itself in place of the first one: a control with equally many
            parameters and operations, and no view of the other image.
    """

    heads: PositiveInt | None = None
    hidden: PositiveInt | None = None
    detach_previous: bool = True
    control: bool = False

    def __post_init__(self) -> None:
        check_fields(self)


class CrossImageLayer(nn.Module):
    """Cross-attention from the second image to the first one, and feed-forward; the first image is unchanged.

    Args:
        width: D.
        options: heads, hidden width, and source of the cross-attention.

    Raises:
        ConfigError: ``heads`` does not divide ``width``.
    """

    def __init__(self, width: PositiveInt, options: StatefulEncoderOptions) -> None:
        check_arguments(CrossImageLayer.__init__, locals())
        super().__init__()
        heads = options.heads or max(h for h in range(1, 17) if width % h == 0)
        if width % heads:
            raise ConfigError(f"features of width {width} cannot be split among {heads} heads; choose a divisor")
        self.options = options
        self.norm_query, self.norm_previous, self.norm_feed = (nn.LayerNorm(width) for _ in range(3))
        self.attention = Attention(width, heads)
        self.feed = FeedForward(width, options.hidden or 2 * width, 0.0)
        for linear in (self.attention.out, self.feed[2]):
            assert isinstance(linear, nn.Linear)
            nn.init.zeros_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, images: Tensor) -> Tensor:
        """States ``(B, 2, L, D)`` after this layer."""
        first, second = images.unbind(1)
        previous = second if self.options.control else first
        if self.options.detach_previous:
            previous = previous.detach()
        states = second + self.attention(self.norm_query(second), self.norm_previous(previous))
        states = states + self.feed(self.norm_feed(states))
        return torch.stack([first, states.to(first.dtype)], 1)
