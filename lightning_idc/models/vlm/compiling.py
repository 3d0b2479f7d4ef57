"""torch.compile of the layers of a vision-language model, one by one."""

from __future__ import annotations

import torch

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
    # the inputs of the first layer then require gradients like those of the others, so that it shares their graph
    net.model.get_input_embeddings().register_forward_hook(_require_gradient)
    for layer in net.units():
        # hooks, such as MDP's on the tower, would be traced together with their state
        if not layer._forward_hooks and not layer._forward_pre_hooks:
            layer.compile(fullgraph=True, dynamic=True)
    net.is_compiled = True


def _require_gradient(module: torch.nn.Module, inputs: object, output: torch.Tensor) -> None:
    if torch.is_grad_enabled():
        output.requires_grad_(True)
