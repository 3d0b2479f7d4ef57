"""``trainer.precision: auto``, which Lightning does not have."""

from __future__ import annotations

import torch

AUTO = "auto"


def hardware_precision(accelerator: str) -> str:
    """Precision for ``auto``: ``bf16-mixed`` on a CPU that has AMX, and Lightning's default everywhere else.

    Without AMX, products of 16-bit matrices are slower than those of 32 bits, tenfold without AVX-512. A version of
    torch that does not report AMX counts as a CPU without it.

    Args:
        accelerator: ``accelerator`` of the Trainer.
    """
    return "bf16-mixed" if accelerator == "cpu" and _has_amx() else "32-true"


def _has_amx() -> bool:
    """Whether this CPU has AMX for bfloat16, and torch the library that uses it."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.cpu, "get_capabilities"):
        return False
    return bool(torch.cpu.get_capabilities().get("amx_bf16", False))
