"""Freed memory is kept by the allocator; the kernel's count of pages that it had to clear is the oracle."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

FAULTS = """
import ctypes, resource, sys
import torch
from lightning_idc.cli.memory import keep_freed_memory
torch.set_num_threads(1)
for name, value in ((-1, 0), (-3, 128 * 1024)):  # give everything back: what glibc does by itself depends on luck
    assert ctypes.CDLL(None).mallopt(name, value)
if sys.argv[1] == "kept":
    keep_freed_memory()
def step():
    held = [torch.ones(6 * 2**20) for _ in range(8)]  # 24 MiB each
for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def pages_cleared(way: str) -> int:
    done = subprocess.run([sys.executable, "-c", FAULTS, way], capture_output=True, text=True, timeout=120, check=True)
    return int(done.stdout)


@pytest.mark.slow  # two processes that import everything
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc's allocator that is told to")
def test_what_was_freed_is_kept() -> None:
    assert pages_cleared("given back") > 100
    assert pages_cleared("kept") < 10
