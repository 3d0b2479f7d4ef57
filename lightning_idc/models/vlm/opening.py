"""A captioner by the name of a published model, or from a checkpoint, where the machine computes fastest."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch

from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.loading import load_captioner
from lightning_idc.models.vlm.module import VLMCaptioner
from lightning_idc.models.vlm.prompting import PROMPT
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
    """Captioner that is ready to describe pairs: a published model as it is, or one of a checkpoint.

    Args:
        model: folder or hub id of a vision-language model.
        checkpoint: ``.ckpt`` file or folder of ``save_pretrained``, in place of ``model``.
        revision: branch, tag or commit of ``model``.
        dtype: of the weights; ``auto`` takes those of the files on a GPU and float32 otherwise.
        device: for example ``cuda:1``; ``auto`` takes a GPU if there is one.
        quantize: bits of the weights of ``model``, as of :class:`~lightning_idc.models.vlm.module.VLMCaptioner`.
        attn: implementation of attention of ``model``.
        prompt: what is asked about the pair; the library's, or that of the checkpoint, when None.
        max_pixels: of an image; larger ones are scaled down.

    Raises:
        ConfigError: not exactly one of ``model`` and ``checkpoint`` is given, there is no such device, or an option
            goes with a model only.
    """
    if (model is None) == (checkpoint is None):
        raise ConfigError("give either a model, by folder or hub id, or a checkpoint; not both")
    where = _device(device)
    if model is not None:
        captioner: PairCaptioner = VLMCaptioner(
            model=model,
            revision=revision,
            dtype=dtype,
            device=str(where),
            quantize=quantize,
            attn=attn,
            prompt=prompt or PROMPT,
            max_pixels=max_pixels,
        )
        captioner.build()
        # quantized weights are where they were loaded and cannot be moved in every format
        return (captioner if quantize else captioner.to(where)).eval()
    given = {"revision": revision, "quantize": quantize, "attn": attn}
    if wrong := [name for name, value in given.items() if value is not None]:
        raise ConfigError(f"{', '.join(wrong)} belong to a published model; a checkpoint holds its own weights")
    captioner = load_captioner(checkpoint)  # type: ignore[arg-type]
    asked = {name: value for name, value in (("prompt", prompt), ("max_pixels", max_pixels)) if value is not None}
    if asked and not isinstance(captioner, VLMCaptioner):
        raise ConfigError(f"{', '.join(asked)}: a {type(captioner).__name__} is not asked in words; leave it out")
    captioner.store_hparams(**asked)
    low = dtype in ("bfloat16", "float16") or (dtype == "auto" and where.type == "cuda")
    if low and isinstance(captioner, VLMCaptioner):
        captioner.to(torch.float16 if dtype == "float16" else torch.bfloat16)
    return captioner.to(where).eval()


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"there is no device {name!r} here ({error}); leave it out, or name one that is") from error
    return device
