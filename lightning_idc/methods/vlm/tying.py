"""Weights that two modules share, as a head and its embeddings do, taken apart where they become two."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from lightning_idc.core.distributed import is_sharded

if TYPE_CHECKING:
    from lightning_idc.methods.vlm.net import VLMNet


def untie(module: nn.Module, model: nn.Module) -> None:
    """Give a module copies of those of its own weights that other modules of the model have, too."""
    uses = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
    for name, parameter in list(module.named_parameters(recurse=False)):
        if uses[id(parameter)] > 1:
            setattr(module, name, nn.Parameter(parameter.detach().clone(), parameter.requires_grad))


def untie_what_differs(net: VLMNet, state_dict: dict[str, Any], prefix: str, *unused: Any) -> None:
    """Take weights apart of which two are to be loaded, as after a merge into one: a ``load_state_dict`` pre-hook."""
    if is_sharded(net):
        return  # built as the checkpoint was, since shards are read past this hook
    first: dict[int, str] = {}
    for name, parameter in list(net.named_parameters(remove_duplicate=False)):
        one, other = (state_dict.get(prefix + key) for key in (first.setdefault(id(parameter), name), name))
        if one is not None and other is not None and one is not other and not torch.equal(one, other):
            untie(net.get_submodule(name.rpartition(".")[0]), net)
            tell_ties(net.model)


def tell_ties(model: Any) -> None:
    """Have the configuration of a model say so where its head and its embeddings are two."""
    if model.get_output_embeddings().weight is not model.get_input_embeddings().weight:
        for config in (model.config, model.config.get_text_config()):
            config.tie_word_embeddings = False
