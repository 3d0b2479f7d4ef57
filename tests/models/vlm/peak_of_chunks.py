"""Run by test_vlm_chunked.py: peak memory in MiB of log-probabilities over a large vocabulary."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from helpers.processes import run_script

from lightning_idc.models.vlm import chunked


def peak() -> int:
    """Peak memory of this process in KiB; ru_maxrss would start at the peak of the parent process."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1])


def main(way: str, out: Path) -> None:
    torch.set_num_threads(1)
    head = torch.nn.Linear(64, 60_000, bias=False)
    states = torch.randn(1024, 64, requires_grad=True)
    targets = torch.arange(1024)
    if way == "once":
        chunked.MAX_UNCHUNKED_LOGITS = 1 << 40
    before = peak()
    chunked.chunked_log_probs(states, head, targets).sum().backward()
    out.write_text(str((peak() - before) // 1024))


if __name__ == "__main__":
    run_script(main, sys.argv[1], Path(sys.argv[2]))
