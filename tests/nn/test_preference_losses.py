"""Preference losses against TRL's numbers and against the equations in float64."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from lightning_idc.methods.adpo.comparison import mean_of_means
from lightning_idc.methods.adpo.losses import dpo


@pytest.mark.parametrize(("beta", "smoothing"), [(0.1, 0.0), (0.1, 0.1), (0.5, 0.0), (0.5, 0.1)])
def test_dpo_equals_trl(shared: Path, beta: float, smoothing: float) -> None:
    from safetensors.torch import load_file

    folder = shared / "parity" / "dpo"
    if not folder.is_dir():
        pytest.skip("the parity fixture of DPO is not in the shared folder")
    given = load_file(folder / "io.safetensors")
    expected = json.loads((folder / "meta.json").read_text())["out"][f"b{beta}_ls{smoothing}"]
    policy = [given["policy_chosen"], given["policy_rejected"]]
    reference = [given["reference_chosen"], given["reference_rejected"]]
    chosen, rejected = (p - r for p, r in zip(policy, reference, strict=True))
    assert dpo(chosen - rejected, beta, smoothing).mean().item() == pytest.approx(expected["loss"], abs=1e-7)
    assert (beta * chosen).mean().item() == pytest.approx(expected["chosen_rewards"], abs=1e-8)
    assert (beta * (chosen - rejected)).mean().item() == pytest.approx(expected["margin"], abs=1e-8)


def test_dpo_is_minus_the_log_of_the_bradley_terry_probability() -> None:
    ratio = torch.tensor([-30.0, -1.0, 0.0, 2.0, 800.0], dtype=torch.float64)
    # Eq. 1 with r = beta * log-ratio, written with exponentials
    expected = [math.log1p(math.exp(-0.3 * r)) if r > -1000 else None for r in ratio.tolist()]
    torch.testing.assert_close(dpo(ratio, 0.3), torch.tensor(expected, dtype=torch.float64))
    smooth = 0.8 * dpo(ratio, 0.3) + 0.2 * dpo(-ratio, 0.3)
    torch.testing.assert_close(dpo(ratio, 0.3, 0.2), smooth)


def test_ipo_is_least_where_the_log_ratio_is_half_the_inverse_of_beta() -> None:
    ratio = torch.tensor([5.0], dtype=torch.float64, requires_grad=True)
    ipo(ratio, 0.1).sum().backward()
    assert ratio.grad.item() == pytest.approx(0.0)
    assert ipo(torch.tensor([2.0]), 0.25).item() == 0.0
    assert ipo(torch.tensor([3.0]), 0.25).item() == pytest.approx(1.0)


def test_means_per_token_and_over_captions_leave_padding_out() -> None:
    mask = torch.tensor([[[False, True, True, True], [False, True, False, False]]])
    assert per_token(torch.tensor([[-6.0, -5.0]]), mask).tolist() == [[-2.0, -5.0]]
    values = torch.tensor([[1.0, 3.0], [7.0, float("nan")]])
    assert mean_of_means(values, torch.tensor([[True, True], [True, False]])).item() == pytest.approx(4.5)
