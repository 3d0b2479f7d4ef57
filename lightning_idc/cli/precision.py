"""``trainer.precision: auto``, which Lightning does not have."""

from __future__ import annotations

import torch

AUTO = "auto"


def hardware_precision(accelerator: str) -> str:
    """Precision for ``auto``: ``bf16-mixed`` on a CPU that has AMX, and Lightning's default everywhere else.

    Without AMX, products of 16-bit matrices are slower than those of 32 bits, tenfold without AVX-512.

    Args:
        accelerator: ``accelerator`` of the Trainer.
    """
    return "bf16-mixed" if accelerator == "cpu" and torch.cpu._is_amx_tile_supported() else "32-true"
