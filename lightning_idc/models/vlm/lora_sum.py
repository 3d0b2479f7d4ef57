"""LoRA layers that add their scaled update to the output in one operator, where PEFT takes two.

If the host launches kernels more slowly than the device runs them, each operator costs time, and a layer of Qwen-VL's
language model has seven such sums. Import it lazily, as it imports PEFT.
"""

from __future__ import annotations

from typing import Any

import torch
from peft.tuners.lora.layer import Linear, LoraVariant
from torch import Tensor, nn


class FusedSum(LoraVariant):
    """``output + scaling * B(A(x))`` in one operator, as a variant of PEFT's forward pass; merges like a plain LoRA."""

    @staticmethod
    def forward(module: Any, active_adapter: str, x: Tensor, result: Tensor, **unused: Any) -> Tensor:
        dropped = module.lora_dropout[active_adapter](x)
        update = module.lora_B[active_adapter](module.lora_A[active_adapter](dropped))
        return torch.add(result, update, alpha=module.scaling[active_adapter])

    @staticmethod
    def merge_safe(module: Any, active_adapter: str, orig_weight: Tensor) -> Tensor:
        return orig_weight + module.get_delta_weight(active_adapter).to(orig_weight.dtype)

    @staticmethod
    def merge_unsafe(module: Any, active_adapter: str, orig_weight: Tensor) -> None:
        orig_weight.data += module.get_delta_weight(active_adapter)

    @staticmethod
    def unmerge(module: Any, active_adapter: str, orig_weight: Tensor) -> Tensor:
        return orig_weight.data - module.get_delta_weight(active_adapter).to(orig_weight.dtype)


def fuse_sums(model: nn.Module, adapter_name: str) -> None:
    """Switch plain LoRA layers to :class:`FusedSum`; variants such as DoRA and quantized layers are left alone.

    The result equals PEFT's if the scaling is a power of two, and is otherwise rounded once in place of twice.

    Args:
        model: model with PEFT layers.
        adapter_name: name of the adapter within PEFT.
    """
    modules: list[Any] = list(model.modules())
    for layer in modules:
        if type(layer) is Linear and adapter_name in layer.lora_A and adapter_name not in layer.lora_variant:
            layer.lora_variant[adapter_name] = FusedSum()
