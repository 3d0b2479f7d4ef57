"""StatefulEncoder: adds cross-attention from the second to the first image to each layer of a vision tower."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from lightning_idc.methods.m3diff.cost import measure_forward
from lightning_idc.methods.stateful_encoder.net import CrossImageLayer, StatefulEncoderOptions
from lightning_idc.models.adapter import SwitchedAdapter, VisionTower, channels_for, submodule_for
from lightning_idc.utils.errors import ConfigError


@runtime_checkable
class BlockTower(VisionTower, Protocol):
    """Interface of networks whose hidden states can be replaced between the layers of their vision tower."""

    def rewrite_blocks(self, layers: Sequence[int], rewrite: Callable[[int, Tensor], Tensor]) -> None:
        """Replace the states ``(B, 2, L, D)`` after ``layers[i]``, counted from 1, by ``rewrite(i, states)``."""


class StatefulEncoder(SwitchedAdapter):
    """Adds a :class:`CrossImageLayer` after layers of a vision tower.

    Args:
        layers: layers of the vision tower, counted from 1, after which one is added; all of them when None. In a
            network that is not a :class:`BlockTower`, a single one is added after the backbone.
        at: path of the module whose output is a grid ``(2B, D, h, w)``, first and second image alternating, in networks
            that are not a :class:`BlockTower`; ``backbone`` when None.
        options: fields of :class:`StatefulEncoderOptions`.
    """

    def __init__(self, layers: Sequence[int] | None = None, at: str | None = None, **options: Any) -> None:
        super().__init__()
        self.depths, self.at, self.options = layers, at, StatefulEncoderOptions(**options)
        self.blocks = nn.ModuleList()

    def install(self, net: nn.Module) -> None:
        if isinstance(net, BlockTower):
            self._install_in_tower(net)
            return
        path = self.at or "backbone"
        if self.depths is not None:
            raise ConfigError(
                f"layers is {list(self.depths)}; expected None, as {type(net).__name__} has a single layer, after "
                f"{path!r}"
            )
        module = submodule_for(self, net, path)
        width = channels_for(self, module, path)
        if getattr(module, "reads_pairs", False):
            raise ConfigError(
                f"StatefulEncoder reads two images, and {type(module).__name__} reads the pair as one; choose another "
                "backbone"
            )
        self.blocks.append(CrossImageLayer(width, self.options))
        module.register_forward_hook(self._rewrite_grid)

    def _install_in_tower(self, net: BlockTower) -> None:
        width, depth = net.feature_width, net.feature_depth
        if self.at is not None:
            raise ConfigError(
                f"StatefulEncoder goes into the vision tower of {type(net).__name__}, and `at` is {self.at!r}; leave "
                "`at` out"
            )
        if net.recomputes:
            raise ConfigError(
                "StatefulEncoder changes states between layers, which activation_checkpointing would compute again "
                "without it; set activation_checkpointing to false"
            )
        depths = list(range(1, depth + 1)) if self.depths is None else list(self.depths)
        is_valid = all(isinstance(number, int) and 1 <= number <= depth for number in depths)
        if not depths or not is_valid or sorted(set(depths)) != depths:
            raise ConfigError(f"layers is {depths}; expected increasing numbers from 1 to {depth}")
        self.blocks.extend(CrossImageLayer(width, self.options) for _ in depths)
        net.rewrite_blocks(depths, self.rewrite)

    def rewrite(self, index: int, images: Tensor) -> Tensor:
        """States ``(B, 2, L, D)`` after the layer at ``index``; unchanged while this adapter is disabled."""
        rewritten: Tensor = self.blocks[index](images) if self.is_enabled else images
        return rewritten

    def _rewrite_grid(self, module: nn.Module, inputs: object, grid: Tensor) -> Tensor:
        """Forward hook on a grid backbone."""
        pairs = grid.flatten(2).mT.unflatten(0, (-1, 2))  # (B, 2, h w, D)
        # a frozen backbone runs without gradients, but this layer is trained
        with torch.set_grad_enabled(torch.is_grad_enabled() or self.training):
            return self.rewrite(0, pairs).flatten(0, 1).mT.reshape(grid.shape)

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """Apply all layers to the states ``(B, 2, L, D)`` in ``features[0]``; used by :meth:`forward_cost` only."""
        states = features[0]
        for layer in self.blocks:
            states = layer(states)
        return states

    def forward_cost(self, num_patches: int, bytes_per_value: int) -> tuple[float, int]:
        layer = self.blocks[0]
        assert isinstance(layer, CrossImageLayer)
        width = layer.norm_feed.normalized_shape[0]
        images = torch.empty(1, 2, num_patches // 2, width, device="meta").requires_grad_()
        flops, size = measure_forward(self, [images], layer.attention.heads)
        return flops, size * bytes_per_value // torch.float32.itemsize
