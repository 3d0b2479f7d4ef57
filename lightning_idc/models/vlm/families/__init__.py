"""Families of vision-language models: the code that depends on the model type, one file per family."""

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
    """Register a custom family for models of a transformers ``model_type``.

    Args:
        model_type: ``model_type`` in the ``config.json`` of the model.
        family: class of the family; test it with :func:`lightning_idc.models.vlm.contract.check_family`.
    """
    _registered[model_type] = family


def family_of(model_type: str) -> Family:
    """Family that is registered for a transformers ``model_type``.

    Raises:
        ConfigError: there is none; :func:`family_for` also covers other published models.
    """
    if model_type in _registered:
        return _registered[model_type]()
    if model_type not in FAMILIES:
        raise ConfigError(f"no family of vision-language models is called {model_type!r}; known: {', '.join(FAMILIES)}")
    module, name = FAMILIES[model_type]
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)()


def family_for(model: Any, processor: Any) -> Family:
    """Family of a loaded model: the registered one, or the generic one.

    Raises:
        ConfigError: the model does not accept precomputed image features.
    """
    kind = model.config.model_type
    return family_of(kind) if kind in _registered or kind in FAMILIES else Generic(model, processor)
