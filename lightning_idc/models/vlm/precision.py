"""Precision of weights: frozen ones low, those that train float32."""

from __future__ import annotations

import torch
from torch import nn

from lightning_idc.models.vlm.vision_language import VisionLanguageModel
from lightning_idc.utils.errors import ConfigError

LOW = (torch.bfloat16, torch.float16)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def dtype_named(name: str) -> torch.dtype | None:
    """Precision of a name; None for ``auto``.

    Raises:
        ConfigError: the name is unknown.
    """
    if name != "auto" and name not in DTYPES:
        raise ConfigError(f"dtype {name!r} is unknown; expected auto, {', '.join(DTYPES)}")
    return DTYPES.get(name)


def is_quantized(parameter: nn.Parameter) -> bool:
    """Whether a weight is stored in fewer bits than it stands for: integers of bitsandbytes, tensors of torchao."""
    return not parameter.is_floating_point() or type(parameter.data).__module__.startswith("torchao.")


def autocast_of(precision: str) -> torch.dtype | None:
    """Precision of the products under a Trainer's mixed ``precision``; None for any other."""
    return {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}.get(precision)


@torch.no_grad()
def set_precision(net: VisionLanguageModel, low: torch.dtype | None) -> None:
    """Store weights that train in float32 and frozen ones in ``low``, once, so that autocast never casts them again.

    Args:
        net: of a loaded model, with its adapters.
        low: None to leave all weights as they are.
    """
    if low is None:
        return
    language = tuple(f"model.{path}." for path in net.language_modules)
    trains = {_part(name) for name, p in net.named_parameters() if p.requires_grad}
    for name, parameter in net.named_parameters():
        if not parameter.is_floating_point() or parameter.dtype not in (*LOW, torch.float32):
            continue
        # a frozen layer between those of a tower that trains keeps their precision, as norms of one kind meet the other
        frozen = not parameter.requires_grad and (name.startswith(language) or _part(name) not in trains)
        parameter.data = parameter.data.to(low if frozen else torch.float32)
    net.autocast_dtype = low
    for part in net.modules():
        # PEFT would write a float32 copy of each input of a LoRA, of which autocast makes one of 16 bits again
        if hasattr(part, "_cast_input_dtype"):
            part.cast_input_dtype_enabled = False  # type: ignore[assignment]


def _part(name: str) -> str:
    """Tower, projector or language model that a weight belongs to."""
    return ".".join(name.split(".")[:3])


def refuse_low_precision(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raise where an optimizer of torch would train weights of 16 bits, whose steps round away.

    Args:
        module: that trains.
        optimizer: of its parameters; one of another package may keep float32 copies or round at random.

    Raises:
        ConfigError: at least one trainable weight has 16 bits.
    """
    low = [name for name, p in module.named_parameters() if p.requires_grad and p.dtype in LOW]
    if low and type(optimizer).__module__.startswith("torch.optim"):
        raise ConfigError(
            f"{len(low)} trainable weights have 16 bits ({', '.join(low[:2])}), where small steps round away and "
            "nothing is learned; set trainer.precision to bf16-mixed, which keeps what trains in float32"
        )
