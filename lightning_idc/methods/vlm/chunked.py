"""Log-probabilities of tokens without the logits of the vocabulary: a chunk of it is in memory at a time."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

ROWS = 256
"""Tokens whose logits are made at once where torch has no fused head."""
SMALL = 1 << 22
"""Logits below this number are made at once, which is faster."""


def chunked_log_probs(states: Tensor, head: nn.Linear, targets: Tensor) -> Tensor:
    """Log-probabilities ``(N,)``, float32, of targets under ``head(states)``.

    Args:
        states: ``(N, D)``.
        head: to the vocabulary.
        targets: ``(N,)``.
    """
    kind = states.dtype
    if torch.is_autocast_enabled(states.device.type):
        kind = torch.get_autocast_dtype(states.device.type)
    states, weight = states.to(kind), head.weight.to(kind)
    bias = None if head.bias is None else head.bias.to(kind)
    if states.shape[0] * weight.shape[0] <= SMALL:
        return -F.cross_entropy(F.linear(states, weight, bias).float(), targets, reduction="none")
    return torch.cat(
        [
            checkpoint(_rows, part, weight, bias, goal, use_reentrant=False)
            for part, goal in zip(states.split(ROWS), targets.split(ROWS), strict=True)
        ]
    )


def _rows(states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    return -F.cross_entropy(F.linear(states, weight, bias).float(), targets, reduction="none")
