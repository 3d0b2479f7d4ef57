"""Weights that a checkpoint of a captioner leaves to the published model, which brings them again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_idc.methods.vlm.module import VLMCaptioner


def belongs(name: str, weights: set[str]) -> bool:
    """Whether an entry says how one of some quantized weights is scaled, beside it or below it."""
    heads = [name[:place] for place, letter in enumerate(name) if letter == "."]
    return any(head in weights for head in heads) or f"{heads[-1]}.weight" in weights


def stock_name(name: str) -> str:
    """Path that a parameter had before peft put its layer into another one."""
    return name.replace(".base_layer.", ".").replace(".original_module.", ".")


def leave_stock(host: VLMCaptioner, state_dict: dict[str, Any], prefix: str, *unused: Any) -> None:
    """Leave the weights of ``model`` out of what strategies save and read of a sharded module: a post-hook."""
    if host.device_mesh is not None and not host._whole:
        for name in host._left_out():
            state_dict.pop(prefix + name, None)


def take_stock(host: VLMCaptioner, state_dict: dict[str, Any], prefix: str, *unused: Any) -> None:
    """Fill in weights that a checkpoint left to ``model``: a ``load_state_dict`` pre-hook.

    Only weights that still are those of ``model`` are filled in; what the checkpoint brings is none of them from then
    on, and everything else stays strict.
    """
    host._stock -= {stock_name(key.removeprefix(prefix)) for key in state_dict}
    if not host._stock:
        return
    for name, parameter in host.named_parameters(remove_duplicate=False):
        if stock_name(name) in host._stock:
            state_dict.setdefault(prefix + name, parameter)
