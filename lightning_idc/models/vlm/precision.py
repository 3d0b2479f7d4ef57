"""Precision of weights: 16 bits for frozen weights, float32 for trainable ones."""

from __future__ import annotations

import torch
from torch import nn

from lightning_idc.models.parameter_groups import LOW_PRECISION
from lightning_idc.models.vlm.vision_language import VisionLanguageModel
from lightning_idc.utils.errors import ConfigError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def dtype_named(name: str) -> torch.dtype | None:
    """Torch dtype by name; None for ``auto``.

    Raises:
        ConfigError: the name is unknown.
    """
    if name != "auto" and name not in DTYPES:
        raise ConfigError(f"dtype {name!r} is unknown; expected auto, {', '.join(DTYPES)}")
    return DTYPES.get(name)


def is_quantized(parameter: nn.Parameter) -> bool:
    """Whether a weight is quantized, by bitsandbytes or torchao."""
    return not parameter.is_floating_point() or type(parameter.data).__module__.startswith("torchao.")


def autocast_of(precision: str) -> torch.dtype | None:
    """Autocast dtype of a Trainer's mixed ``precision``; None for any other."""
    return {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}.get(precision)


@torch.no_grad()
def set_precision(net: VisionLanguageModel, low: torch.dtype | None) -> None:
    """Store trainable weights in float32 and frozen ones in ``low``, so that autocast need not cast frozen weights.

    Args:
        net: loaded model with its adapters.
        low: dtype of frozen weights; None leaves all weights unchanged.
    """
    if low is None:
        return
    language = tuple(f"model.{path}." for path in net.language_modules)
    trainable_parts = {_part(name) for name, p in net.named_parameters() if p.requires_grad}
    for name, parameter in net.named_parameters():
        if not parameter.is_floating_point() or parameter.dtype not in (*LOW_PRECISION, torch.float32):
            continue
        # a frozen layer in a trainable tower stays float32, since layer norms need inputs and weights of one dtype
        is_frozen = not parameter.requires_grad and (name.startswith(language) or _part(name) not in trainable_parts)
        parameter.data = parameter.data.to(low if is_frozen else torch.float32)
    net.autocast_dtype = low
    for part in net.modules():
        # PEFT would copy each LoRA input to float32, only for autocast to cast it back to 16 bits
        if hasattr(part, "_cast_input_dtype"):
            part.cast_input_dtype_enabled = False  # type: ignore[assignment]


def _part(name: str) -> str:
    """Path of the tower, the projector or the language model that contains a weight."""
    return ".".join(name.split(".")[:3])
