"""torch.compile of the layers of a vision-language model, one by one."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

from lightning_idc.models.vlm.vision_language import VisionLanguageModel


def compile_layers(net: VisionLanguageModel) -> None:
    """Compile each decoder layer and each block of the tower in place; layers of one class share their graphs.

    Call it after adapters are installed and precisions are set, and before weights are sharded. Shapes are dynamic,
    so that batches of all caption lengths share a graph. First layers are compiled from the second batch on. Decoding
    with a cache is not compiled.

    Args:
        net: the model.
    """
    if net.is_compiled:
        return
    units = net.units()
    # the input of a first layer then requires gradients like those of the others, so that it shares their graph
    net.model.get_input_embeddings().register_forward_hook(_require_gradient)
    for path, layers in net.model.named_modules():
        if isinstance(layers, nn.ModuleList) and not path.startswith(net.language_modules) and _trains(layers, units):
            tower = net.model.get_submodule(path.rpartition(".")[0])
            tower.register_forward_pre_hook(_require_input_gradient, with_kwargs=True)
    counts = Counter(type(unit) for unit in units)
    # a single layer, such as the embedding of patches, shares its graph with no other, and hooks, such as MDP's on the
    # tower, would be traced together with their state
    compiled = [
        unit for unit in units if counts[type(unit)] > 1 and not unit._forward_hooks and not unit._forward_pre_hooks
    ]
    # the input of a first layer may be a view, whose graph would serve no other layer; the others' graph serves it
    first = {type(layer): layer for layer in reversed(compiled)}
    for layer in compiled:
        if layer is not first[type(layer)]:
            layer.compile(fullgraph=True, dynamic=True)
    net.compile_later = tuple(first.values())
    net.is_compiled = True


def _trains(layers: nn.Module, units: list[nn.Module]) -> bool:
    """Whether a module contains some of the units, and a trainable weight."""
    has_units = not {id(unit) for unit in units}.isdisjoint(id(part) for part in layers.modules())
    return has_units and any(parameter.requires_grad for parameter in layers.parameters())


def _require_gradient(module: nn.Module, inputs: object, output: Tensor) -> None:
    if torch.is_grad_enabled():
        output.requires_grad_(True)


def _require_input_gradient(
    module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Let the first tensor of floats require gradients; that of a tower is its pixels or their embedding."""
    named: dict[Any, Any] = {**dict(enumerate(arguments)), **options}
    for name, value in named.items():
        if isinstance(value, Tensor) and value.is_floating_point():
            if torch.is_grad_enabled() and not value.requires_grad:
                named[name] = value.detach().requires_grad_(True)
            break
    return tuple(named[index] for index in range(len(arguments))), {name: named[name] for name in options}
