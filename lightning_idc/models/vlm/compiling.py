"""torch.compile of the layers of a vision-language model, one by one."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor, nn

from lightning_idc.models.vlm.vision_language import VisionLanguageModel


def compile_layers(net: VisionLanguageModel) -> None:
    """Compile each decoder layer and each block of the tower in place; layers of one class share their graphs.

    Call it after adapters are installed and precisions are set, and before weights are sharded. Shapes are dynamic,
    so that batches of all caption lengths share a graph. Decoding with a cache is not compiled.

    Args:
        net: the model.
    """
    if net.is_compiled:
        return
    units = net.units()
    for embedding in _input_embeddings(net.model, units):
        # the input of a first layer then requires gradients like those of the others, so that it shares their graph
        embedding.register_forward_hook(_require_gradient)
    counts = Counter(type(layer) for layer in units)
    for layer in units:
        # a single layer, such as the embedding of patches, shares its graph with no other, and hooks, such as MDP's on
        # the tower, would be traced together with their state
        if counts[type(layer)] > 1 and not layer._forward_hooks and not layer._forward_pre_hooks:
            layer.compile(fullgraph=True, dynamic=True)
    net.is_compiled = True


def _input_embeddings(model: nn.Module, units: list[nn.Module]) -> list[nn.Module]:
    """Embeddings of tokens and of patches whose layers are trained, by transformers' ``get_input_embeddings``."""
    from transformers import PreTrainedModel

    trained = {id(unit) for unit in units if any(parameter.requires_grad for parameter in unit.parameters())}
    embeddings: dict[int, nn.Module] = {}
    for part in model.modules():
        if isinstance(part, PreTrainedModel) and not trained.isdisjoint(id(unit) for unit in part.modules()):
            try:
                embedding = part.get_input_embeddings()
            except NotImplementedError:
                continue
            if isinstance(embedding, nn.Module):
                embeddings[id(embedding)] = embedding
    return list(embeddings.values())


def _require_gradient(module: nn.Module, inputs: object, output: Tensor) -> Tensor | None:
    if not torch.is_grad_enabled() or output.requires_grad:
        return None
    # detached, since graphs guard on the tensor behind a view
    return output.detach().requires_grad_(True)
