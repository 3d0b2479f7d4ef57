"""Freed memory is kept by the allocator; its own figures are the oracle."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

KEPT = """
import ctypes, sys
import torch
from lightning_idc.cli.memory import keep_freed_memory
NAMES = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
class Figures(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in NAMES]
torch.set_num_threads(1)
if sys.argv[1] == "kept":
    keep_freed_memory()
for _ in range(3):
    held = [torch.ones(6 * 2**20) for _ in range(8)]  # 24 MiB each
    del held
figures = ctypes.CDLL(None).mallinfo2
figures.restype = Figures
print(figures().keepcost // 2**20)  # what lies free at the end, where it could be given back
"""


def mebibytes_kept(way: str) -> int:
    done = subprocess.run([sys.executable, "-c", KEPT, way], capture_output=True, text=True, timeout=120, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver() < ("glibc", "2.33"), reason="mallinfo2 came with glibc 2.33")
def test_what_was_freed_is_kept() -> None:
    # glibc gives back from twice the largest block on, which is 48 MiB here
    assert mebibytes_kept("given back") <= 48 < mebibytes_kept("kept")
