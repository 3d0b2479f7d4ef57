"""Freed memory is kept: asking for it again costs no page faults."""

from __future__ import annotations

import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import torch
from lightning_idc.cli.memory import keep_freed_memory
torch.set_num_threads(1)
if sys.argv[1] == "kept":
    keep_freed_memory()
for _ in range(3):
    held = [torch.ones(6 * 2**20) for _ in range(8)]  # 24 MiB each
    del held
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    held = [torch.ones(6 * 2**20) for _ in range(8)]
    del held
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(way: str) -> int:
    done = subprocess.run([sys.executable, "-c", FAULTS, way], capture_output=True, text=True, timeout=120, check=True)
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc is Linux's")
def test_memory_that_was_freed_is_not_fetched_anew() -> None:
    given_back, kept = faults("given back"), faults("kept")
    # 960 MiB are asked for
    assert kept < 100
    assert kept < given_back / 5, "glibc gives them back by itself"
