"""``trainer.precision: auto``, which Lightning does not have."""

from __future__ import annotations

import torch

AUTO = "auto"


def hardware_precision(accelerator: str) -> str:
    """Precision for ``auto``: ``bf16-mixed`` on a CPU that multiplies bfloat16, and Lightning's default elsewhere.

    Such a CPU has AMX or AVX512-BF16. On all others products of 16-bit matrices are slower than those of 32 bits,
    tenfold without AVX-512. A version of torch that does not report these instructions counts as a CPU without them.

    Args:
        accelerator: ``accelerator`` of the Trainer.
    """
    return "bf16-mixed" if accelerator == "cpu" and _multiplies_bfloat16() else "32-true"


def _multiplies_bfloat16() -> bool:
    """Whether this CPU has instructions for products of bfloat16, and torch the library that uses them."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.cpu, "get_capabilities"):
        return False
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in ("amx_bf16", "avx512_bf16"))
