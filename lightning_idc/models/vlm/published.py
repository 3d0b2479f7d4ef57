"""load_model: load a published vision-language model from a folder, the Hugging Face cache or the hub."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lightning_idc.checkpoints.reading import check_no_pointers
from lightning_idc.checkpoints.resolve import hub_file, resolve, unreachable
from lightning_idc.models.adapters import RECORDS
from lightning_idc.models.vlm.families import family_for
from lightning_idc.models.vlm.families.base import Family
from lightning_idc.models.vlm.peft_folder import is_peft_folder
from lightning_idc.utils.errors import ConfigError, loading_model

QUANTIZED = {"4bit": "bitsandbytes", "8bit": "bitsandbytes", "int4": "torchao", "int8": "torchao"}
"""Quantization methods of frozen weights, and the package that each needs."""

SKELETON = "base"
"""Subfolder of ``save_pretrained`` with the configuration and the processor of a model."""


@dataclass(frozen=True)
class Source:
    """Location and loading options of a published model.

    Args:
        name: folder or hub id.
        revision: branch, tag or commit on the hub.
        dtype: dtype of the weights; that of the files when None.
        quantize: one of :data:`QUANTIZED`, or None.
        attn: attention implementation, by its name in transformers (``sdpa``, ``eager``, ``flash_attention_2``,
            ``flex_attention``).
        device: device that the weights are loaded to; the CPU when None.
    """

    name: str
    revision: str | None = None
    dtype: torch.dtype | None = torch.float32
    quantize: str | None = None
    attn: str | None = None
    device: str | None = None

    def options(self) -> dict[str, Any]:
        """Arguments of ``from_pretrained``; transformers asks interactively if ``trust_remote_code`` is None."""
        return {**({"revision": self.revision} if self.revision else {}), "trust_remote_code": False}


def load_model(source: Source) -> tuple[Any, Any, Family]:
    """Model, processor and family of a folder or hub id.

    Raises:
        ConfigError: the model does not exist, lacks weights, needs custom code or a missing package, or does not
            take two images.
    """
    from transformers import AutoModelForImageTextToText, AutoProcessor

    find_model(source.name, source.revision)
    config = read_config(source)
    options = source.options()
    with loading_model(source.name):
        processor = AutoProcessor.from_pretrained(source.name, **options)
    if source.attn is not None:
        options["attn_implementation"] = source.attn
    if source.quantize is not None:
        device = source.device or ("cuda" if torch.cuda.is_available() else "cpu")
        options["quantization_config"] = quantization(source.quantize, source.dtype, device)
    dtype = source.dtype
    if source.quantize == "int4":
        dtype = dtype or torch.bfloat16  # the dtype that its kernels support
    if source.device is not None:
        options["device_map"] = source.device
    with loading_model(source.name):
        try:
            loaded: Any = AutoModelForImageTextToText.from_pretrained(
                source.name, config=config, dtype=dtype or "auto", output_loading_info=True, **options
            )
        except (ValueError, ImportError, RuntimeError) as error:
            raise ConfigError(f"{source.name!r} cannot be loaded with these options: {error}") from error
    model, info = loaded
    missing = sorted(info["missing_keys"])
    if missing:
        raise ConfigError(
            f"{source.name!r} lacks {len(missing)} weights of a {type(model).__name__}, which would stay random: "
            f"{', '.join(missing[:3])}; expected a complete model in the format of transformers >= 5.23"
        )
    if source.quantize == "4bit":
        _disable_repacking(model)
    return model, processor, family_for(model, processor)


def _disable_repacking(model: nn.Module) -> None:
    """Prevent bitsandbytes from repacking 4-bit weights on a CPU: the packed format has no gradients."""
    from bitsandbytes.nn import Linear4bit

    for part in model.modules():
        if isinstance(part, Linear4bit):
            part.support_avx512bf16_for_cpu = False  # otherwise the first evaluation packs them


def load_empty(source: Source) -> tuple[Any, Any, Family]:
    """Model with weights on ``meta``, for a process that receives the weights from rank 0.

    Buffers are real, since checkpoints do not contain all of them.
    """
    from transformers import AutoModelForImageTextToText, AutoProcessor, GenerationConfig

    find_model(source.name, source.revision)
    config = read_config(source)
    options = source.options()
    with loading_model(source.name):
        processor = AutoProcessor.from_pretrained(source.name, **options)
    if source.attn is not None:
        options["attn_implementation"] = source.attn
    with weights_on_meta():
        model: Any = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    with suppress(OSError):  # the file is optional
        model.generation_config = GenerationConfig.from_pretrained(source.name, revision=source.revision or "main")
    return model, processor, family_for(model, processor)


@contextmanager
def weights_on_meta() -> Iterator[None]:
    """Context in which module parameters, but not buffers, are moved to ``meta`` at registration."""
    register = nn.Module.register_parameter

    def register_on_meta(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and not param.is_meta:  # keep tied weights tied
            param = nn.Parameter(param.to("meta"), requires_grad=param.requires_grad)
        register(module, name, param)

    nn.Module.register_parameter = register_on_meta  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def save_skeleton(net: Any, folder: Path) -> None:
    """Write the configurations, the processor and the tokenizer of a model, without weights."""
    net.model.config.save_pretrained(folder)
    net.model.generation_config.save_pretrained(folder)
    net.processor.save_pretrained(folder)


def load_skeleton(folder: Path) -> tuple[Any, Any, Family]:
    """Model with random weights from :func:`save_skeleton`, with its processor and family."""
    from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor, GenerationConfig

    with loading_model(folder):
        processor = AutoProcessor.from_pretrained(folder, trust_remote_code=False)
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32, trust_remote_code=False)
    model.generation_config = GenerationConfig.from_pretrained(folder)
    return model, processor, family_for(model, processor)


def read_config(source: Source) -> Any:
    """Configuration of a published model.

    Raises:
        ConfigError: the model type is unknown to transformers or not a vision-language model.
    """
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

    with loading_model(source.name):
        config = AutoConfig.from_pretrained(source.name, **source.options())
    if type(config) not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        raise ConfigError(
            f"{source.name!r} is a model of type {config.model_type}, which does not read images and text; expected a "
            "vision-language model (AutoModelForImageTextToText)"
        )
    return config


def quantization(kind: str, compute: torch.dtype | None, device: str = "cpu") -> Any:
    """Quantization configuration of transformers.

    Args:
        kind: one of :data:`QUANTIZED`.
        compute: dtype of the matrix products; bfloat16 when None.
        device: device of the weights.

    Raises:
        ConfigError: the kind is unknown, its package is not installed, or it does not support the device or dtype.
    """
    from transformers import BitsAndBytesConfig, TorchAoConfig

    if kind not in QUANTIZED:
        raise ConfigError(f"quantize {kind!r} is unknown; expected one of {', '.join(QUANTIZED)}")
    if find_spec(QUANTIZED[kind]) is None:
        raise ConfigError(f"quantize {kind!r} needs the package {QUANTIZED[kind]}; `pip install {QUANTIZED[kind]}`")
    if kind == "4bit":
        return BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=compute or torch.bfloat16,
        )
    if kind == "8bit":
        return BitsAndBytesConfig(load_in_8bit=True)
    from torchao.quantization import Int4WeightOnlyConfig, Int8WeightOnlyConfig

    if kind == "int8":
        return TorchAoConfig(Int8WeightOnlyConfig())
    if not device.startswith("cuda"):
        raise ConfigError(f"torchao supports int4 only on GPUs, not on {device!r}; use 4bit or int8")
    if compute not in (None, torch.bfloat16):
        raise ConfigError(f"torchao supports int4 only in bfloat16, not in {compute}; leave dtype out, or use 4bit")
    # the layout of torchao's own kernels; other layouts need a further package
    return TorchAoConfig(Int4WeightOnlyConfig(group_size=32, int4_packing_format="tile_packed_to_4d"))


def is_local(name: str, revision: str | None = None) -> bool:
    """Whether a model is a folder or in the Hugging Face cache; the hub is not asked."""
    from huggingface_hub import snapshot_download

    try:
        return Path(name).is_dir() or bool(snapshot_download(name, revision=revision, local_files_only=True))
    except Exception:
        return False


def find_model(name: str, revision: str | None = None) -> None:
    """Check that a model is a folder, in the cache or on the hub.

    Raises:
        ConfigError: the model cannot be located.
    """
    if Path(name).is_dir():
        if not Path(name, "config.json").is_file():
            _check_no_adapters(Path(name), name)
        if not Path(name, "config.json").is_file():
            raise ConfigError(f"the folder {name!r} has no config.json; expected a model as transformers saves it")
        check_no_pointers(Path(name))  # only now: the name may come from a checkpoint, and no other folder is read
        return
    if is_local(name, revision):
        if hub_file(name, "config.json", revision) is None:
            _check_no_adapters(resolve(name, revision), name)
        return
    from huggingface_hub import HfApi

    try:
        # one request with a short timeout: transformers itself would retry every file
        HfApi().model_info(name, revision=revision, timeout=5)
    except Exception as error:
        raise ConfigError(unreachable(name, error)) from error


def _check_no_adapters(folder: Path, name: str) -> None:
    if is_peft_folder(folder) or (folder / RECORDS).is_file():
        raise ConfigError(
            f"{name!r} has adapters, not a model; expected their base model, onto which load_adapters puts them "
            "(lightning_idc.load opens a LoRA on its base model)"
        )
