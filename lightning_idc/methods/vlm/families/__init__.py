"""What one family of vision-language models does differently from another, one file per family."""

from __future__ import annotations

import importlib

from lightning_idc.core.types import PairError
from lightning_idc.methods.vlm.families.base import Family

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


def family_of(model_type: str) -> Family:
    """Family of a transformers ``model_type``.

    Raises:
        PairError: it is not one of those that are known here.
    """
    if model_type not in FAMILIES:
        raise PairError(f"no family of vision-language models is called {model_type!r}; known: {', '.join(FAMILIES)}")
    module, name = FAMILIES[model_type]
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)()
