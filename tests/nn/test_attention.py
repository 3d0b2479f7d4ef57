"""Attention by matrix products. Oracles: torch's fused kernel, and the formula in float64."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from lightning_idc.nn.attention import MAX_UNFUSED_KEYS, attend


@pytest.mark.parametrize("queries", [1, 4])
def test_few_queries_equal_fused_kernel(queries: int) -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(3, queries, 2, 8, generator=generator).transpose(1, 2)
    keys, values = torch.randn(2, 3, 2, 12, 8, generator=generator)[..., :11, :].unbind(0)
    for scale in (None, 0.1):
        expected = F.scaled_dot_product_attention(query, keys, values, scale=scale)
        torch.testing.assert_close(attend(query, keys, values, scale=scale), expected, atol=1e-6, rtol=1e-5)


def _masks() -> dict[str, Tensor | None]:
    generator = torch.Generator().manual_seed(1)
    padding = torch.rand(3, 1, 1, 9, generator=generator) > 0.4
    padding[1] = False  # all keys are masked
    bias = torch.randn(2, 9, 9, generator=generator).requires_grad_()
    return {"none": None, "causal": None, "padding": padding, "bias": bias}


@pytest.mark.parametrize("kind", _masks())
def test_training_in_16_bits_equals_formula(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = _outputs_and_gradients(torch.float64, kind, F.scaled_dot_product_attention)
    monkeypatch.setattr(F, "scaled_dot_product_attention", Mock(side_effect=AssertionError("the slow kernel")))
    actual = _outputs_and_gradients(torch.bfloat16, kind, attend)
    for one, other in zip(actual, expected, strict=True):
        # bf16 has 8 significant bits, and each of the four products is rounded
        assert (one.double() - other).norm() < 0.01 * other.norm()


def _outputs_and_gradients(dtype: torch.dtype, kind: str, attention: object) -> list[Tensor]:
    """Output and gradients of query, keys, values and bias, computed from the same bf16 values."""
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(3, 2, 9, 8, generator=generator).bfloat16().to(dtype).requires_grad_() for _ in range(3)]
    mask, is_causal = _masks()[kind], kind == "causal"
    if mask is not None and mask.is_floating_point():
        mask = mask.detach().bfloat16().to(dtype).requires_grad_()
    if attention is attend:
        output = attend(*parts, mask, causal=is_causal)
    else:
        output = F.scaled_dot_product_attention(*parts, attn_mask=mask, is_causal=is_causal)
    leaves = [*parts, *([mask] if mask is not None and mask.requires_grad else [])]
    weights = torch.linspace(-1, 1, output.numel()).view(output.shape).to(dtype)
    return [output, *torch.autograd.grad((output * weights).sum(), leaves)]


def test_evaluation_long_pairs_and_dropout_use_the_fused_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = Mock(side_effect=F.scaled_dot_product_attention)
    monkeypatch.setattr(F, "scaled_dot_product_attention", fused)
    query = torch.randn(1, 1, 12, 4, dtype=torch.bfloat16)
    long = torch.randn(1, 1, MAX_UNFUSED_KEYS + 1, 4, dtype=torch.bfloat16, requires_grad=True)
    attend(query, query, query)
    attend(query, long, long)
    attend(query.requires_grad_(), query, query, dropout=0.1)
    assert fused.call_count == 3
    attend(query, query, query)
    assert fused.call_count == 3
