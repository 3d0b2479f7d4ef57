"""Reading models by name: where they are, how they are spread over devices, and what is missing for them."""

from __future__ import annotations

import os
import pickle
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch

from lightning_idc.utils.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Loading:
    """How the weights of a large model are read.

    Args:
        device_map: ``auto`` spreads the model over what is there, GPUs first; needs the package accelerate.
        attention: implementation, such as ``sdpa`` or ``flash_attention_2``; None for the model's own.
        quantization: of the weights; needs the package bitsandbytes.
    """

    device_map: str | None = None
    attention: str | None = None
    quantization: Literal["int8", "int4"] | None = None

    def options(self, dtype: torch.dtype) -> dict[str, Any]:
        """Arguments of ``from_pretrained``."""
        options: dict[str, Any] = {}
        if self.device_map is not None:
            options["device_map"] = self.device_map
        if self.attention is not None:
            options["attn_implementation"] = self.attention
        if self.quantization is not None:
            from transformers import BitsAndBytesConfig

            options["quantization_config"] = (
                BitsAndBytesConfig(load_in_8bit=True)
                if self.quantization == "int8"
                else BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=dtype)
            )
        return options

    @property
    def keeps_device(self) -> bool:
        """Whether the model must stay where ``from_pretrained`` put it."""
        return self.device_map is not None or self.quantization is not None

    def settings(self) -> dict[str, Any]:
        """What may change an answer, where it is not the default."""
        default = asdict(Loading())
        return {name: value for name, value in asdict(self).items() if value != default[name]}

    def requirements(self) -> list[str]:
        """Packages that are missing."""
        needed = {"accelerate": self.device_map is not None, "bitsandbytes": self.quantization is not None}
        return [missing_package(name) for name, wanted in needed.items() if wanted and find_spec(name) is None]


def missing_package(name: str, extra: str | None = None) -> str:
    """Sentence that says how to install a package."""
    how = f"pip install 'lightning_idc[{extra}]'" if extra else f"pip install {name}"
    return f"the package {name} is not installed: {how}"


def missing_weights(name: str, revision: str | None, file: str = "config.json") -> str | None:
    """Why a model cannot be read; None where it can, as far as that is known without reading it.

    Args:
        name: folder or name on the hub.
        revision: commit or tag.
        file: that every model of this kind has.
    """
    from huggingface_hub import try_to_load_from_cache

    folder = Path(name)
    if folder.is_dir():
        return None if (folder / file).is_file() else f"the folder {name} holds no model: there is no {file} in it"
    if isinstance(try_to_load_from_cache(name, file, revision=revision), str):
        return None
    if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
        return unreadable(name, "it is not in the hub's cache, and HF_HUB_OFFLINE is set")
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        HfApi().model_info(name, revision=revision, timeout=10)
    except (OSError, HfHubHTTPError, HFValidationError) as error:
        return unreadable(name, str(error).splitlines()[0])
    return None


def weight_bytes(name: str, revision: str | None) -> int:
    """Bytes of the safetensors files of a model that is on this machine; 0 where it is not."""
    from huggingface_hub import try_to_load_from_cache

    folder = Path(name)
    if not folder.is_dir():
        config = try_to_load_from_cache(name, "config.json", revision=revision)
        if not isinstance(config, str):
            return 0
        folder = Path(config).parent
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def unreadable(name: str, why: object) -> str:
    """Sentence that says how to get a model."""
    if "trust_remote_code" in str(why):  # transformers advises to run the code
        return f"the model {name!r} brings code of its own, which is never run; choose one that transformers itself has"
    if isinstance(why, pickle.UnpicklingError):  # torch advises the same
        return f"the model {name!r} holds pickled objects, which would run code; choose one with safetensors"
    return (
        f"the model {name!r} cannot be read ({why}); fetch it where there is a network, with `hf download {name}`, or "
        "name a local folder"
    )


def require(problems: list[str]) -> None:
    """Stop at the first problem.

    Raises:
        ConfigError: there is one.
    """
    for problem in problems:
        raise ConfigError(problem)
