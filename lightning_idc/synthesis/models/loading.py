"""Load models by name: location, placement on devices, and missing requirements."""

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
    """Options for loading the weights of a large model.

    Args:
        device_map: ``auto`` distributes the model over all devices, GPUs first; requires the package accelerate.
        attention: attention implementation, such as ``sdpa`` or ``flash_attention_2``; None for the default.
        quantization: quantization of the weights; requires the package bitsandbytes.
    """

    device_map: str | None = None
    attention: str | None = None
    quantization: Literal["int8", "int4"] | None = None

    def options(self, dtype: torch.dtype) -> dict[str, Any]:
        """Build the arguments of ``from_pretrained``."""
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
        """Return the options that differ from the defaults, since they may change outputs."""
        default = asdict(Loading())
        return {name: value for name, value in asdict(self).items() if value != default[name]}

    def requirements(self) -> list[str]:
        """List missing packages."""
        is_required_by_package = {
            "accelerate": self.device_map is not None,
            "bitsandbytes": self.quantization is not None,
        }
        return [
            missing_package(name)
            for name, is_required in is_required_by_package.items()
            if is_required and find_spec(name) is None
        ]


def missing_package(name: str, extra: str | None = None) -> str:
    """Build a message on how to install a package."""
    command = f"pip install 'lightning_idc[{extra}]'" if extra else f"pip install {name}"
    return f"the package {name} is not installed: {command}"


def missing_weights(name: str, revision: str | None, file: str = "config.json") -> str | None:
    """Return the reason why a model cannot be loaded; None if no problem is known without loading it.

    Args:
        name: folder or name on the hub.
        revision: commit or tag.
        file: file that every model of this type contains.
    """
    from huggingface_hub import try_to_load_from_cache

    folder = Path(name)
    if folder.is_dir():
        return None if (folder / file).is_file() else f"the folder {name} contains no model: {file} is missing"
    if isinstance(try_to_load_from_cache(name, file, revision=revision), str):
        return None
    if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
        return cannot_load(name, "it is not in the hub's cache, and HF_HUB_OFFLINE is set")
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        HfApi().model_info(name, revision=revision, timeout=10)
    except (OSError, HfHubHTTPError, HFValidationError) as error:
        return cannot_load(name, str(error).splitlines()[0])
    return None


def weight_bytes(name: str, revision: str | None) -> int:
    """Return the size in bytes of the local safetensors files of a model; 0 if it is not downloaded."""
    from huggingface_hub import try_to_load_from_cache

    folder = Path(name)
    if not folder.is_dir():
        config = try_to_load_from_cache(name, "config.json", revision=revision)
        if not isinstance(config, str):
            return 0
        folder = Path(config).parent
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def cannot_load(name: str, cause: object) -> str:
    """Build a message on a model that cannot be loaded."""
    if "trust_remote_code" in str(cause):  # transformers advises to run the code
        return f"the model {name!r} needs remote code, which is never run; choose a model that transformers implements"
    if isinstance(cause, pickle.UnpicklingError):  # torch advises the same
        return f"the model {name!r} contains pickled objects, which could run code; choose a model with safetensors"
    return (
        f"the model {name!r} cannot be loaded ({cause}); download it with `hf download {name}`, or set a local folder"
    )


def require(problems: list[str]) -> None:
    """Raise an error for the first problem.

    Raises:
        ConfigError: ``problems`` is not empty.
    """
    for problem in problems:
        raise ConfigError(problem)
