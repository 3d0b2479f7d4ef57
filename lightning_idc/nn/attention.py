"""Attention by torch's fused kernel, or by matrix products where these are faster on a CPU.

Measured with `benchmarks/attention.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

MAX_UNFUSED_QUERIES = 8
"""Maximum number of queries for which attention in float32 is two matrix products instead of the fused kernel."""
MAX_UNFUSED_KEYS = 512
"""Maximum number of keys for which attention in 16 bits is trained by matrix products: they store all weights."""


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None = None,
    scale: float | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """`scaled_dot_product_attention`, faster on a CPU for few queries and for training in 16 bits.

    Args:
        query: ``(N, heads, q, d)``.
        keys: ``(N, heads, M, d)``.
        values: ``(N, heads, M, d)``.
        mask: broadcast to ``(N, heads, q, M)``; bool, True at keys to attend to, or numbers that are added to the
            logits; not together with ``causal``.
        scale: factor of the dot products; ``d ** -0.5`` when None.
        causal: whether queries cannot attend to later keys.
        dropout: dropout probability of attention weights.
    """
    is_plain = mask is None and not causal
    if dropout or not (_trains_in_16_bits(query, keys, values) or (is_plain and _has_few_queries(query))):
        return F.scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, dropout_p=dropout, is_causal=causal, scale=scale
        )
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if causal:
        mask = torch.ones(query.shape[2], keys.shape[2], dtype=torch.bool, device=query.device).tril()
    weights = _logits(query, keys, mask, scale).softmax(-1)  # (N * heads, q, M)
    attended = torch.bmm(weights, values.flatten(0, 1)).unflatten(0, query.shape[:2])
    if mask is None or causal or mask.dtype != torch.bool:
        return attended
    return attended * mask.any(-1, keepdim=True)  # 0 for a query without keys, as of the fused kernel


def _logits(query: Tensor, keys: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Masked dot products, ``(N * heads, q, M)``."""
    num, heads, num_queries, _ = query.shape
    flat_query, flat_keys = query.flatten(0, 1), keys.flatten(0, 1)
    if mask is None:
        return torch.bmm(flat_query * scale, flat_keys.mT)
    if mask.dtype == torch.bool:
        # half of the minimum, to which a dot product can be added without an overflow
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, torch.finfo(query.dtype).min / 2)
    bias = mask.to(query.dtype).expand(num, heads, num_queries, keys.shape[2]).flatten(0, 1)
    return torch.baddbmm(bias, flat_query, flat_keys.mT, alpha=scale)


def _has_few_queries(query: Tensor) -> bool:
    """Whether the fused kernel, which is optimised for many queries, takes longer than two products."""
    return query.device.type == "cpu" and query.dtype == torch.float32 and query.shape[2] <= MAX_UNFUSED_QUERIES


def _trains_in_16_bits(query: Tensor, keys: Tensor, values: Tensor) -> bool:
    """Whether the fused kernel's backward pass on a CPU, which is slow in 16 bits, would run."""
    is_half = query.device.type == "cpu" and query.dtype in (torch.bfloat16, torch.float16)
    is_recorded = torch.is_grad_enabled() and any(part.requires_grad for part in (query, keys, values))
    return is_half and is_recorded and keys.shape[2] <= MAX_UNFUSED_KEYS
