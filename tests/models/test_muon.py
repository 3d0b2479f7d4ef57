"""MuonAdamW: its two halves against torch's Muon and AdamW, the iteration against its formula on singular values."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_idc.models.muon import COEFFICIENTS, MuonAdamW, orthogonalized
from lightning_idc.models.pair_transformer.net import PairTransformerNet
from lightning_idc.nn.backbones import build_backbone
from lightning_idc.utils.errors import ConfigError


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (4, 4), (1, 6)])
def test_the_iteration_is_a_polynomial_of_the_singular_values(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    matrices = torch.randn(2, *shape, dtype=torch.float64)
    left, values, right = torch.linalg.svd(matrices, full_matrices=False)
    values = values / values.norm(dim=1, keepdim=True)
    for _ in range(5):
        a, b, c = COEFFICIENTS
        values = a * values + b * values**3 + c * values**5
    expected = left @ torch.diag_embed(values) @ right
    torch.testing.assert_close(orthogonalized(matrices), expected, rtol=1e-9, atol=1e-9)


def test_singular_values_come_close_to_one() -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalized(torch.randn(8, 64, 96)))
    assert values.min() > 0.6 and values.max() < 1.25
    assert torch.equal(orthogonalized(torch.zeros(1, 3, 4)), torch.zeros(1, 3, 4))


def network() -> nn.Module:
    """Create a network with matrices of several shapes, a convolution, norms and biases."""
    torch.manual_seed(0)
    net = PairTransformerNet(build_backbone("cnn", pairs=True), (4, 4), vocabulary=11, width=16, heads=2, dropout=0.0)
    return net.double()


def gradients(net: nn.Module, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for value in net.parameters():
        value.grad = torch.randn(value.shape, generator=generator, dtype=value.dtype)


def test_matrices_step_as_in_torch_muon_and_the_rest_as_in_adamw() -> None:
    net, reference = network(), network()
    ours = MuonAdamW(net.parameters(), lr=5e-3, weight_decay=0.01)
    matrices = [value for value in reference.parameters() if value.ndim == 2]
    rest = [value for value in reference.parameters() if value.ndim != 2]
    assert len(matrices) > 10 and any(value.ndim == 4 for value in rest)
    # torch's Muon computes in bfloat16
    muon = torch.optim.Muon(matrices, lr=5e-3, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW(rest, lr=5e-3, weight_decay=0.01, betas=(0.9, 0.98))
    before = copy.deepcopy(net)
    for step in range(4):
        for one in (net, reference):
            gradients(one, step)
        for optimizer in (ours, muon, adamw):
            optimizer.step()
    for start, value, expected in zip(before.parameters(), net.parameters(), reference.parameters(), strict=True):
        if value.ndim == 2:
            moved, error = (expected - start).norm(), (value - expected).norm()
            assert moved > 0 and error < 0.03 * moved
        else:
            torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)


def test_the_step_leaves_gradients_as_they_are_and_returns_the_loss() -> None:
    net = network()
    optimizer = MuonAdamW(net.parameters())
    gradients(net, 0)
    expected = [value.grad.clone() for value in net.parameters() if value.grad is not None]

    def closure() -> Tensor:
        assert torch.is_grad_enabled()
        return torch.tensor(2.0)

    assert optimizer.step(closure) == 2.0
    for value, gradient in zip(net.parameters(), expected, strict=True):
        assert value.grad is not None and torch.equal(value.grad, gradient)


def test_a_restored_optimizer_continues_as_if_uninterrupted() -> None:
    net = network()
    optimizer = MuonAdamW(net.parameters(), fused=True)
    for step in range(3):
        gradients(net, step)
        optimizer.step()
    file = io.BytesIO()
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    again = network()
    again.load_state_dict(saved["net"])
    resumed = MuonAdamW(again.parameters(), fused=True)
    resumed.load_state_dict(saved["optimizer"])
    for step in range(3, 6):
        for one, its in ((net, optimizer), (again, resumed)):
            gradients(one, step)
            its.step()
    for value, expected in zip(again.parameters(), net.parameters(), strict=True):
        assert torch.equal(value, expected)


def test_a_parameter_without_a_gradient_stays() -> None:
    layer = nn.Linear(3, 2)
    weight = layer.weight.detach().clone()
    optimizer = MuonAdamW(layer.parameters())
    optimizer.step()
    assert torch.equal(layer.weight, weight) and not optimizer.state


@pytest.mark.parametrize("options", [{"lr": -1.0}, {"momentum": 1.0}, {"iterations": 0}, {"betas": (0.9, 1.0)}])
def test_impossible_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        MuonAdamW(nn.Linear(2, 2).parameters(), **options)
