"""torch.compile of the layers of a vision-language model, one by one."""

from __future__ import annotations

import torch

from lightning_idc.models.vlm.vision_language import VisionLanguageModel


def compile_layers(net: VisionLanguageModel) -> None:
    """Compile each decoder layer and each block of the tower where it stands; all layers of a kind share their graphs.

    Call it when adapters and precisions are set, and before weights are sharded. Lengths are dynamic, so that
    captions of all lengths and numbers share a graph. Decoding with a cache stays as it is.

    Args:
        net: the model.
    """
    if net.is_compiled:
        return
    # the first layer is then like the others, whose inputs have gradients
    net.model.get_input_embeddings().register_forward_hook(_require_gradient)
    for layer in net.units():
        # hooks, such as MDP's on the tower, would become part of the graph with all that they remember
        if not layer._forward_hooks and not layer._forward_pre_hooks:
            layer.compile(fullgraph=True, dynamic=True)
    net.is_compiled = True


def _require_gradient(module: torch.nn.Module, inputs: object, output: torch.Tensor) -> None:
    if torch.is_grad_enabled():
        output.requires_grad_(True)
