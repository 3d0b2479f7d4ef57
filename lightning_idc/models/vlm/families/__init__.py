"""What one family of vision-language models does differently from another, one file per family."""

from __future__ import annotations

import importlib
from typing import Any

from lightning_idc.models.vlm.families.base import Family
from lightning_idc.models.vlm.families.generic import Generic
from lightning_idc.utils.errors import ConfigError

# transformers' model_type -> module and class; a module is imported when its family is used
FAMILIES = {
    "llava_onevision": ("llava_onevision", "LlavaOnevision"),
    "llava": ("llava", "Llava"),
    "qwen2_vl": ("qwen_vl", "QwenVL"),
    "qwen2_5_vl": ("qwen_vl", "QwenVL"),
    "qwen3_vl": ("qwen_vl", "Qwen3VL"),
    "internvl": ("internvl", "InternVL"),
    "idefics3": ("idefics", "Idefics3"),
    "smolvlm": ("idefics", "SmolVLM"),
}
_registered: dict[str, type[Family]] = {}


def register_family(model_type: str, family: type[Family]) -> None:
    """Use a family of your own for models of a transformers ``model_type``.

    Args:
        model_type: as in the ``config.json`` of the model.
        family: its class; :func:`lightning_idc.models.vlm.checking.scoring_errors` says whether it is exact.
    """
    _registered[model_type] = family


def family_of(model_type: str) -> Family:
    """Family of a transformers ``model_type`` that has one of its own.

    Raises:
        ConfigError: it has none; a published model then goes by :func:`family_for`.
    """
    if model_type in _registered:
        return _registered[model_type]()
    if model_type not in FAMILIES:
        raise ConfigError(f"no family of vision-language models is called {model_type!r}; known: {', '.join(FAMILIES)}")
    module, name = FAMILIES[model_type]
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)()


def family_for(model: Any, processor: Any) -> Family:
    """Family of a loaded model: one of its own, or the generic one.

    Raises:
        ConfigError: the model takes no features of images.
    """
    kind = model.config.model_type
    return family_of(kind) if kind in _registered or kind in FAMILIES else Generic(model, processor)
