"""LoRA merged into the weights while decoding, which then runs fewer than half as many operators per token."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@torch.no_grad()
def _folded_weight(layer: Any, name: str) -> Tensor:
    weight = layer.get_base_layer().weight
    with torch.autocast(weight.device.type, enabled=False):
        return (weight.float() + layer.get_delta_weight(name).float()).to(weight.dtype)


@contextmanager
def folded(net: nn.Module) -> Iterator[None]:
    """Context in which layers with one active LoRA run as plain layers; the original weights are restored exactly.

    Copies of the original weights double the memory of these layers. Not folded: layers with quantized, sharded or tied
    weights, DoRA, and layers with active dropout.

    Args:
        net: network with or without a LoRA.
    """
    if "peft" not in sys.modules:  # importing it takes seconds, and no layer can be one of its
        yield
        return
    uses = Counter(id(p) for part in net.modules() for p in part.parameters(recurse=False))
    modules: list[Any] = list(net.modules())
    layers = [
        (layer, name)
        for layer in modules
        if (name := _foldable(layer)) is not None and uses[id(layer.get_base_layer().weight)] == 1
    ]
    originals: list[Tensor] = []
    try:
        for layer, name in layers:
            # in place: a CUDA graph of a decoding step reads the weights at their addresses
            weight = layer.get_base_layer().weight.data
            originals.append(weight.clone())
            weight.copy_(_folded_weight(layer, name))
            layer._disable_adapters = True
        yield
    finally:
        for (layer, _), original in zip(layers, originals, strict=False):
            layer.get_base_layer().weight.data.copy_(original)
            layer._disable_adapters = False


def _foldable(layer: Any) -> str | None:
    """Name of the single active adapter of a layer, if it can be folded; None otherwise."""
    try:
        from peft.tuners.lora import Linear

        from lightning_idc.models.vlm.lora_sum import FusedSum
    except ImportError:
        return None
    if not isinstance(layer, Linear) or layer.disable_adapters or layer.merged:
        return None
    lora: Any = layer
    names = [name for name in lora.active_adapters if name in lora.lora_A]
    weight = lora.get_base_layer().weight
    is_plain = type(weight.data) is Tensor and weight.is_floating_point()
    if len(names) != 1 or not is_plain or lora.lora_bias[names[0]]:
        return None
    if not isinstance(lora.lora_variant.get(names[0]), FusedSum | None):  # DoRA
        return None
    is_dropping = lora.training and not isinstance(lora.lora_dropout[names[0]], nn.Identity)
    return None if is_dropping else names[0]
