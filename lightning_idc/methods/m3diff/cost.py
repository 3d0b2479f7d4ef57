"""Floating-point operations and activation memory of MDP, measured on the device ``meta`` without allocating it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


def measure_forward(module: nn.Module, features: Sequence[Tensor], heads: int) -> tuple[float, int]:
    """Floating-point operations of a forward pass, and bytes of the activations it saves for the backward pass.

    Args:
        module: module on the device ``meta``, in float32.
        features: features ``(B, 2, L, D)`` of each depth, on ``meta``.
        heads: number of attention heads.
    """
    from torch.utils.flop_counter import FlopCounterMode

    num_positions = features[0].shape[2]
    saved: dict[int, Tensor] = {}

    def save(value: Tensor) -> Tensor:
        # on `meta` attention saves its weights (..., L, L), which the fused kernels of a real device do not
        has_head_dim = value.ndim > 2 and math.prod(value.shape[:-2]) % heads == 0
        is_attention_weight = has_head_dim and min(value.shape[-2:]) >= num_positions
        if not is_attention_weight:
            saved[value.untyped_storage()._cdata] = value  # views of one tensor count once
        return value

    parameters = {p.untyped_storage()._cdata for p in module.parameters()}
    counter = FlopCounterMode(display=False)
    with counter, torch.autograd.graph.saved_tensors_hooks(save, lambda value: value):
        module(features)
    num_bytes = sum(value.untyped_storage().nbytes() for storage, value in saved.items() if storage not in parameters)
    return float(counter.get_total_flops()), num_bytes
