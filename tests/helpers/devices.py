"""Parameters for tests that run on the CPU everywhere and on a GPU where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

GPU_MARKS = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU on this machine"),
]


def on_gpu(*values: Any) -> Any:
    """Parameters of a test that needs a GPU."""
    return pytest.param(*values, marks=GPU_MARKS)


BOTH = ["cpu", on_gpu("cuda")]


@contextmanager
def exact_products() -> Iterator[None]:
    """Turn off TF32, to which convolutions on a GPU otherwise round float32 products."""
    kept = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = kept
