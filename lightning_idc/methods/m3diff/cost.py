"""Floating-point operations and saved activations of MDP, measured without memory for either."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


def measure_forward(module: nn.Module, features: Sequence[Tensor], heads: int) -> tuple[float, int]:
    """Floating-point operations of a forward pass, and bytes of the activations that it saves, in float32.

    Args:
        module: module on the device ``meta``.
        features: input ``(B, 2, L, D)`` of each depth, on ``meta``.
        heads: attention heads.
    """
    from torch.utils.flop_counter import FlopCounterMode

    num_positions = features[0].shape[2]
    saved: dict[int, Tensor] = {}

    def save(value: Tensor) -> Tensor:
        # on `meta` attention is written out; the kernels of a real device do not save its weights, (..., L, L)
        is_attention = value.ndim > 2 and math.prod(value.shape[:-2]) % heads == 0
        if not (is_attention and min(value.shape[-2:]) >= num_positions):
            saved[value.untyped_storage()._cdata] = value  # views of one tensor are saved once
        return value

    weights = {p.untyped_storage()._cdata for p in module.parameters()}
    counter = FlopCounterMode(display=False)
    with counter, torch.autograd.graph.saved_tensors_hooks(save, lambda value: value):
        module(features)
    size = sum(value.untyped_storage().nbytes() for storage, value in saved.items() if storage not in weights)
    return float(counter.get_total_flops()), size
