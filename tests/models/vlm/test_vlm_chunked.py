"""Chunked log-probabilities equal those from all logits, in value and gradient, with a fraction of the memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lightning_idc.models.vlm import chunked
from lightning_idc.models.vlm.chunked import chunked_log_probs, log_probs_by_chunks, log_probs_of_rows

PEAK = """
import sys, torch
from pathlib import Path
from lightning_idc.models.vlm import chunked
torch.set_num_threads(1)
head = torch.nn.Linear(64, 60_000, bias=False)
states = torch.randn(1280, 64, requires_grad=True)
targets = torch.arange(1280)
if sys.argv[1] == "once":
    chunked.MAX_UNCHUNKED_LOGITS = 1 << 40
def peak() -> int:  # of this program alone: ru_maxrss begins at the peak of the process that started it
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1])
before = peak()
chunked.chunked_log_probs(states, head, targets).sum().backward()
print((peak() - before) // 1024)
"""


def loop(states: Tensor, head: nn.Linear, targets: Tensor) -> Tensor:
    return log_probs_by_chunks(states, head.weight, head.bias, targets)


@pytest.mark.parametrize("way", [chunked_log_probs, loop])
@pytest.mark.parametrize("bias", [True, False])
def test_values_and_gradients_are_those_of_all_logits(
    way: Callable[..., Tensor], bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(chunked, "MAX_UNCHUNKED_LOGITS", 0)
    head = nn.Linear(16, 500, bias=bias)
    targets, weights = torch.randint(0, 500, (600,)), torch.randn(600)
    states = torch.randn(600, 16, requires_grad=True)

    def outcome(result: Tensor) -> list[Tensor]:
        states.grad = None
        head.zero_grad()
        (result * weights).sum().backward()
        return [result.detach(), states.grad.clone(), *(p.grad.clone() for p in head.parameters())]  # type: ignore[union-attr]

    expected = outcome(log_probs_of_rows(states, head.weight, head.bias, targets))
    for mine, right in zip(outcome(way(states, head, targets)), expected, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_the_vocabulary_is_never_in_memory_at_once() -> None:
    def peak(way: str) -> int:
        return int(subprocess.run([sys.executable, "-c", PEAK, way], capture_output=True, text=True, check=True).stdout)

    # pages that the kernel takes back meanwhile make a peak look smaller or larger: two measurements of each
    peaks = {"chunks": min(peak("chunks") for _ in range(2)), "once": max(peak("once") for _ in range(2))}
    assert peaks["chunks"] < 0.4 * peaks["once"], peaks
