"""open_captioner: load a captioner from a published model or a checkpoint, onto the GPU if there is one."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from lightning.pytorch.utilities import rank_zero_info

from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.loading import load_captioner
from lightning_idc.models.vlm.module import VLMCaptioner
from lightning_idc.models.vlm.prompting import PROMPT
from lightning_idc.models.vlm.tokens import unused_settings
from lightning_idc.utils.errors import ConfigError


def open_captioner(
    model: str | None = None,
    checkpoint: str | Path | None = None,
    revision: str | None = None,
    dtype: str = "auto",
    device: str = "auto",
    quantize: Literal["4bit", "8bit", "int4", "int8"] | None = None,
    attn: str | None = None,
    prompt: str | None = None,
    max_pixels: int | None = None,
) -> PairCaptioner:
    """Open a published model or a checkpoint as a captioner, in eval mode and on its device.

    Args:
        model: folder or hub id of a vision-language model.
        checkpoint: ``.ckpt`` file or folder of ``save_pretrained``, in place of ``model``.
        revision: branch, tag or commit of ``model``.
        dtype: dtype of the weights; ``auto`` selects that of the files on a GPU and float32 otherwise.
        device: device, for example ``cuda:1``; ``auto`` selects a GPU if there is one.
        quantize: bits of the weights of ``model``; see :class:`~lightning_idc.models.vlm.module.VLMCaptioner`.
        attn: attention implementation of ``model``.
        prompt: instruction about the pair; the default of the library, or that of the checkpoint, when None.
        max_pixels: maximum number of pixels of an image; larger images are scaled down.

    Raises:
        ConfigError: not exactly one of ``model`` and ``checkpoint`` is set, the device does not exist, or an option
            applies only to a model.
    """
    if (model is None) == (checkpoint is None):
        raise ConfigError("set either a model, by folder or hub id, or a checkpoint; not both")
    torch_device = _device(device)
    if model is not None:
        captioner: PairCaptioner = VLMCaptioner(
            model=model,
            revision=revision,
            dtype=dtype,
            device=str(torch_device),
            quantize=quantize,
            attn=attn,
            prompt=prompt or PROMPT,
            max_pixels=max_pixels,
        )
        captioner.build()
        settings = unused_settings(captioner.built_net.model.generation_config)
        if settings:
            listed = ", ".join(f"{name} {value}" for name, value in settings.items())
            rank_zero_info(f"decoding is greedy; of the generation_config of {model} these are not used: {listed}")
        # quantized weights are on their device already, and not every format can be moved
        return (captioner if quantize else captioner.to(torch_device)).eval()
    model_options = {"revision": revision, "quantize": quantize, "attn": attn}
    if invalid := [name for name, value in model_options.items() if value is not None]:
        raise ConfigError(f"{', '.join(invalid)} apply only to a published model; leave them out for a checkpoint")
    captioner = load_captioner(checkpoint)  # type: ignore[arg-type]
    overrides = {name: value for name, value in (("prompt", prompt), ("max_pixels", max_pixels)) if value is not None}
    if overrides and not isinstance(captioner, VLMCaptioner):
        raise ConfigError(f"{type(captioner).__name__} takes no {' or '.join(overrides)}; leave it out")
    captioner.store_hparams(**overrides)
    is_low_precision = dtype in ("bfloat16", "float16") or (dtype == "auto" and torch_device.type == "cuda")
    if is_low_precision and isinstance(captioner, VLMCaptioner):
        captioner.to(torch.float16 if dtype == "float16" else torch.bfloat16)
    return captioner.to(torch_device).eval()


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"the device {name!r} is not available ({error}); leave it out or choose another") from error
    return device
