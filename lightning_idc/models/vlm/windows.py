"""segment_attention: attention within the images and windows of a vision tower, in one call for all of them.

Towers for images of any size, Qwen-VL's and some thirty others of transformers, concatenate the patches of all images
into one sequence and attend within segments of it: images, or windows of an image. Unless flash attention is
installed, transformers calls attention once per segment: 896 calls for a pair of 448 pixels. :func:`segment_attention`
is registered under a name for which these towers pass all segments in one call, as for flash attention.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

SEGMENTS = "segments_as_flash"
"""Name of :func:`segment_attention`; transformers passes segments to implementations with ``flash`` in their name."""


def segment_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int | None = None,
    **unused: Any,
) -> tuple[Tensor, None]:
    """Attention within segments of one row of N patches; reads nothing from the device.

    Args:
        module: attention layer; unused, but part of transformers' interface.
        query: ``(1, heads, N, D)``.
        key: ``(1, heads, N, D)``.
        value: ``(1, heads, N, D)``.
        attention_mask: always None.
        scaling: factor of the products of queries and keys.
        dropout: dropout of the attention weights.
        cu_seq_lens_q: start of each segment, then N, ``(segments + 1,)``.
        max_length_q: length of the longest segment.
        unused: further arguments of transformers.

    Returns:
        Outputs ``(1, N, heads, D)``, and None in place of attention weights.
    """
    assert cu_seq_lens_q is not None and max_length_q is not None and attention_mask is None
    segments, length = len(cu_seq_lens_q) - 1, max_length_q
    rows = [part[0].transpose(0, 1) for part in (query, key, value)]  # (N, heads, D) each
    count = rows[0].shape[0]
    is_even = count == segments * length
    if is_even:
        mask = slots = None
        batch = [part.unflatten(0, (segments, length)) for part in rows]
    else:
        # the slot of each patch among segments padded to one length
        bounds = cu_seq_lens_q.long()
        index = torch.arange(count, device=bounds.device)
        segment = torch.searchsorted(bounds, index, right=True) - 1
        slots = segment * length + index - bounds[segment]
        batch = [
            part.new_zeros(segments * length, *part.shape[1:]).index_copy(0, slots, part).unflatten(0, (segments, -1))
            for part in rows
        ]
        lengths = bounds[1:] - bounds[:-1]
        mask = (torch.arange(length, device=bounds.device) < lengths[:, None])[:, None, None]
    query_rows, key_rows, value_rows = (part.transpose(1, 2) for part in batch)  # (segments, heads, length, D) each
    output = nn.functional.scaled_dot_product_attention(
        query_rows,
        key_rows,
        value_rows,
        attn_mask=mask,
        dropout_p=dropout,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    flat = output.transpose(1, 2).flatten(0, 1)  # (segments * length, heads, D)
    return (flat if slots is None else flat.index_select(0, slots))[None], None


def attend_segments_at_once(model: nn.Module) -> int:
    """Switch layers of a transformers model that attend within segments to :func:`segment_attention`.

    Layers with another implementation than ``sdpa``, such as flash attention, are left alone.

    Args:
        model: model or submodule.

    Returns:
        Number of switched layers.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(SEGMENTS, segment_attention)
    modules: list[Any] = list(model.modules())
    layers = [
        part
        for part in modules
        if hasattr(part, "config")
        and {"cu_seqlens", "max_seqlen"} <= signature(type(part).forward).parameters.keys()
        and part.config._attn_implementation in ("sdpa", SEGMENTS)
    ]
    for layer in layers:
        # the attribute behind the setter, which would also change the configurations inside
        layer.config._attn_implementation_internal = SEGMENTS
    return len(layers)
