"""Log-probabilities of tokens without the logits of the vocabulary: a chunk of them is in memory at a time."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

try:  # torch 2.15
    from torch.nn import LinearCrossEntropyOptions
except ImportError:
    LinearCrossEntropyOptions = None  # type: ignore[assignment,misc]

ROWS = 256
"""Tokens whose logits are made at once where torch has no fused head."""
SMALL = 1 << 24
"""Up to this number logits are made at once, which on a processor is five to twenty-six times as fast."""


def chunked_log_probs(states: Tensor, head: nn.Linear, targets: Tensor) -> Tensor:
    """Log-probabilities ``(N,)``, float32, of targets under ``head(states)``.

    Args:
        states: ``(N, D)``.
        head: to the vocabulary.
        targets: ``(N,)``.

    Example:
        >>> head = nn.Linear(4, 10)
        >>> chunked_log_probs(torch.randn(3, 4), head, torch.tensor([1, 2, 3])).shape
        torch.Size([3])
    """
    kind = states.dtype
    if torch.is_autocast_enabled(states.device.type):
        kind = torch.get_autocast_dtype(states.device.type)
    states, weight = states.to(kind), head.weight.to(kind)
    bias = None if head.bias is None else head.bias.to(kind)
    if states.shape[0] * weight.shape[0] <= SMALL:
        return log_probs_of_rows(states, weight, bias, targets)
    if LinearCrossEntropyOptions is not None:
        options = LinearCrossEntropyOptions()
        found = F.linear_cross_entropy(states, weight, targets, linear_bias=bias, reduction="none", options=options)
        return -found.float()
    return log_probs_by_chunks(states, weight, bias, targets)


def log_probs_by_chunks(states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    """Log-probabilities by chunks of :data:`ROWS` tokens, whose logits are computed again in the backward pass."""
    chunks = zip(states.split(ROWS), targets.split(ROWS), strict=True)
    return torch.cat(
        [checkpoint(log_probs_of_rows, part, weight, bias, goal, use_reentrant=False) for part, goal in chunks]
    )


def log_probs_of_rows(states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    """Log-probabilities from all logits at once."""
    return -F.cross_entropy(F.linear(states, weight, bias).float(), targets, reduction="none")
