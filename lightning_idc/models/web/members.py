"""Members: an ensemble of small networks, and the standardised values that they read."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

MAX_STANDARD = 4.0
"""Standardised values are cut at this one."""


class Members(nn.Module):
    """Networks of equal shape with weights of their own, computed together: ``(B, inputs)`` to ``(M, B, outputs)``."""

    def __init__(self, members: int, inputs: int, width: int, outputs: int, dropout: float) -> None:
        super().__init__()
        sizes = (inputs, width, width, outputs)
        self.weights = nn.ParameterList(
            nn.Parameter(torch.randn(members, a, b) * (2 / a) ** 0.5) for a, b in pairwise(sizes)
        )
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(members, 1, size)) for size in sizes[1:])
        self.dropout = nn.Dropout(dropout)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = inputs.expand(len(self.weights[0]), *inputs.shape)
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if layer:
                hidden = self.dropout(nn.functional.gelu(hidden))
            hidden = torch.baddbmm(bias, hidden, weight)
        return hidden


def standardised(values: Tensor, is_changed: Tensor, norm: nn.BatchNorm1d) -> Tensor:
    """Standardised logarithms of values ``(B, F)``; 0 for unchanged pairs, which do not count in them.

    A batch with a single changed pair has no deviation and is standardised by the pairs so far.
    """
    logs = values.sign() * values.abs().log1p()
    changed = logs[is_changed]
    if norm.training and len(changed) < 2:
        changed = nn.functional.batch_norm(changed, norm.running_mean, norm.running_var, eps=norm.eps)
    else:
        changed = norm(changed)
    changed = changed.clamp(-MAX_STANDARD, MAX_STANDARD)
    return changed.new_zeros(logs.shape).index_put((is_changed,), changed)
