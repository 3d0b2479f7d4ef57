"""Untying of weights that two modules share, such as a head and its embeddings."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import nn

from lightning_idc.models.distributed import is_sharded


def untie(module: nn.Module, model: nn.Module) -> None:
    """Replace the weights that a module shares with other modules of the model by copies."""
    uses = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
    for name, parameter in list(module.named_parameters(recurse=False)):
        if uses[id(parameter)] > 1:
            setattr(module, name, nn.Parameter(parameter.detach().clone(), parameter.requires_grad))


def untie_differing(net: nn.Module, state_dict: dict[str, Any], prefix: str, *unused: Any) -> None:
    """Untie weights that differ in a state dict, for example after a merge: a ``load_state_dict`` pre-hook.

    Args:
        net: network with a transformers model as its submodule ``model``.
        state_dict: weights to load.
        prefix: prefix of the network's names in the state dict.
        unused: other arguments of the hook.
    """
    if is_sharded(net):
        return  # the network was built like the checkpoint, since loading shards bypasses this hook
    first: dict[int, str] = {}
    for name, parameter in list(net.named_parameters(remove_duplicate=False)):
        one, other = (state_dict.get(prefix + key) for key in (first.setdefault(id(parameter), name), name))
        if one is not None and other is not None and one is not other and not torch.equal(one, other):
            untie(net.get_submodule(name.rpartition(".")[0]), net)
            set_tie_config(net.get_submodule("model"))


def set_tie_config(model: Any) -> None:
    """Set ``tie_word_embeddings`` to False if the head and the embeddings of a model are not shared."""
    if model.get_output_embeddings().weight is not model.get_input_embeddings().weight:
        for config in (model.config, model.config.get_text_config()):
            config.tie_word_embeddings = False
