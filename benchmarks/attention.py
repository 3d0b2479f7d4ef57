"""Is attention in 16 bits trained faster by matrix products than by torch's fused kernel, on one CPU core?

CPU time of a forward and a backward pass of `attend` and of `scaled_dot_product_attention`, for queries and keys of
several lengths, the minimum of some repetitions. Both get the same numbers, whose results must agree.

    python -m benchmarks.attention --out FILE
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.harness import report
from lightning_idc.nn import attention

SHAPES = {
    "cells of a captioner": (32, 4, 64, 64, 32),
    "a caption to cells": (32, 4, 20, 64, 32),
    "a caption to itself": (32, 4, 20, 20, 32),
    "256 patches": (8, 8, 256, 256, 64),
    "512 patches": (4, 8, 512, 512, 64),
    "1,024 patches": (2, 8, 1024, 1024, 64),
}
"""Sizes by name: ``(N, heads, queries, keys, width of a head)``."""


def step(attend: Callable[..., Tensor], parts: list[Tensor]) -> tuple[float, list[Tensor]]:
    """Milliseconds of a forward and a backward pass, and output and gradients."""
    began = time.process_time()
    output = attend(*parts)
    gradients = torch.autograd.grad(output, parts, torch.ones_like(output))
    return 1e3 * (time.process_time() - began), [output, *gradients]


def measure(shape: tuple[int, ...], repeats: int) -> dict[str, Any]:
    """Minimum of the milliseconds of both ways, which alternate, and the largest difference of their results."""
    num, heads, queries, keys, width = shape
    parts = [torch.randn(num, heads, length, width).bfloat16().requires_grad_() for length in (queries, keys, keys)]
    fused, products = [], []
    for _ in range(repeats):
        milliseconds, expected = step(F.scaled_dot_product_attention, parts)
        fused.append(milliseconds)
        milliseconds, actual = step(attention.attend, parts)
        products.append(milliseconds)
    difference = max(((a - b).norm() / b.norm()).item() for a, b in zip(actual, expected, strict=True))
    return {"shape": shape, "fused_ms": min(fused), "products_ms": min(products), "relative_difference": difference}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    attention.MAX_UNFUSED_KEYS = 1024  # also measure beyond the limit
    rows = {name: measure(shape, args.repeats) for name, shape in SHAPES.items()}
    result = {"capability": torch.backends.cpu.get_cpu_capability(), "has_amx": torch.cpu._is_amx_tile_supported()}
    report({**result, "attention": rows}, args.out, seeds=[1])


if __name__ == "__main__":
    main()
