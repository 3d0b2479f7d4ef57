"""Preference losses against TRL's own code, against TRL's stored numbers and against the equations in float64."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_idc.methods.adpo.comparison import Comparison, mean_of_means
from lightning_idc.methods.adpo.losses import dpo, margin, preference_probability
from lightning_idc.methods.adpo.preference_losses import (
    AOT,
    CPO,
    EXO,
    IPO,
    DiscoPOP,
    RobustDPO,
    SimPO,
    SmoothedDPO,
    WeightedSum,
    apo_down,
    apo_zero,
    bco,
    hinge,
    ipo,
    nca,
    odds_ratio,
    orpo,
    sft,
    sppo,
)
from lightning_idc.utils.errors import ConfigError


def of_ratio(ratio: Tensor) -> Comparison:
    """One comparison per number, whose log-ratio is that number."""
    zeros = torch.zeros_like(ratio)[:, None]
    ones = torch.ones_like(ratio)[:, None]
    return Comparison(ratio[:, None], zeros, zeros, zeros, ones, ones, ones.bool())


def drawn(pairs: int = 6) -> tuple[Comparison, Tensor, Tensor, Tensor]:
    """Comparisons of captions of different lengths, and the log-probabilities of their tokens."""
    generator = torch.Generator().manual_seed(4)
    lengths = torch.randint(2, 7, (2 * pairs,), generator=generator)
    mask = torch.arange(7)[None] < lengths[:, None]
    policy, reference = (
        -3 * torch.rand(2 * pairs, 7, generator=generator, dtype=torch.float64) * mask for _ in range(2)
    )
    sums = [part.sum(1).view(2, pairs).T for part in (policy, reference)]
    return Comparison.of(sums[0], sums[1], lengths.view(2, pairs).T), policy, reference, mask


# ---- TRL's code --------------------------------------------------------------------------------------------


def trl_loss(kind: str, beta: float, smoothing: float) -> float:
    """Loss of TRL's DPOTrainer for the drawn comparisons, by its own method on stand-ins for trainer and models."""
    module = pytest.importorskip("trl.trainer.dpo_trainer")
    _, policy, reference, mask = drawn()

    def model(log_probs: Tensor) -> Callable[..., Any]:
        blank = torch.zeros_like(log_probs)
        found = SimpleNamespace(log_probs=log_probs, entropy=blank, mean_logits=blank, is_top1=blank.bool())
        return lambda **unused: found

    def same(value: Any) -> Any:
        return value

    trainer = SimpleNamespace(
        model=SimpleNamespace(training=True),
        ref_model=model(reference),
        accelerator=SimpleNamespace(device=torch.device("cpu"), gather=same, gather_for_metrics=same),
        args=SimpleNamespace(gradient_checkpointing=False, gradient_checkpointing_kwargs=None, discopop_tau=0.05),
        aux_loss_enabled=False,
        ld_alpha=None,
        precompute_ref_logps=False,
        f_divergence_type="reverse_kl",
        loss_types=[kind],
        loss_weights=[1.0],
        beta=beta,
        label_smoothing=smoothing,
        use_weighting=False,
        _metrics={"train": defaultdict(list)},
        _total_train_tokens=0,
        _tp_size=1,
    )
    completion = torch.cat([torch.zeros(len(mask), 1, dtype=torch.bool), mask], 1).long()
    inputs = {"input_ids": completion, "attention_mask": completion, "completion_mask": completion}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "is_peft_model", lambda unused: False)
        patch.setattr(module, "disable_gradient_checkpointing", lambda *unused: torch.no_grad())
        return float(module.DPOTrainer._compute_loss(trainer, model(policy), inputs, False))


SAME = {
    "sigmoid": (dpo, 0.0),
    "hinge": (hinge, 0.0),
    "ipo": (IPO(), 0.0),
    "exo_pair": (EXO(0.1), 0.1),
    "nca_pair": (nca, 0.0),
    "robust": (RobustDPO(0.2), 0.2),
    "bco_pair": (bco, 0.0),
    "sppo_hard": (sppo, 0.0),
    "aot": (AOT(label_smoothing=0.1), 0.1),
    "aot_unpaired": (AOT(paired=False), 0.0),
    "apo_zero": (apo_zero, 0.0),
    "apo_down": (apo_down, 0.0),
    "discopop": (DiscoPOP(), 0.0),
}


@pytest.mark.parametrize("kind", SAME)
@pytest.mark.parametrize("beta", [0.1, 0.7])
def test_losses_equal_those_of_trl(kind: str, beta: float) -> None:
    loss, smoothing = SAME[kind]
    comparison = drawn()[0]
    found = float(comparison.mean(loss(comparison, beta)))
    # TRL holds its smoothing in float32
    assert found == pytest.approx(trl_loss(kind, beta, smoothing), abs=1e-6)


@pytest.mark.parametrize(("beta", "smoothing"), [(0.1, 0.0), (0.1, 0.1), (0.5, 0.0), (0.5, 0.1)])
def test_dpo_equals_trl(shared: Path, beta: float, smoothing: float) -> None:
    from safetensors.torch import load_file

    folder = shared / "parity" / "dpo"
    if not folder.is_dir():
        pytest.skip("the parity fixture of DPO is not in the shared folder")
    given = load_file(folder / "io.safetensors")
    expected = json.loads((folder / "meta.json").read_text())["out"][f"b{beta}_ls{smoothing}"]
    policy = torch.stack([given["policy_chosen"], given["policy_rejected"]], 1)
    reference = torch.stack([given["reference_chosen"], given["reference_rejected"]], 1)
    both = Comparison.of(policy, reference, torch.ones_like(policy))
    assert dpo(both, beta, smoothing).mean().item() == pytest.approx(expected["loss"], abs=1e-7)
    assert (beta * both.chosen_ratio).mean().item() == pytest.approx(expected["chosen_rewards"], abs=1e-8)
    assert margin(both, beta).mean().item() == pytest.approx(expected["margin"], abs=1e-8)


# ---- the equations ----------------------------------------------------------------------------------------


def test_dpo_is_minus_the_log_of_the_bradley_terry_probability() -> None:
    ratio = torch.tensor([-30.0, -1.0, 0.0, 2.0, 800.0], dtype=torch.float64)
    expected = torch.tensor([math.log1p(math.exp(-0.3 * r)) for r in ratio.tolist()], dtype=torch.float64)
    torch.testing.assert_close(dpo(of_ratio(ratio), 0.3)[:, 0], expected)
    torch.testing.assert_close(-preference_probability(0.3 * ratio, torch.zeros(5)).log(), expected)
    smooth = 0.8 * dpo(of_ratio(ratio), 0.3) + 0.2 * dpo(of_ratio(-ratio), 0.3)
    torch.testing.assert_close(dpo(of_ratio(ratio), 0.3, 0.2), smooth)
    torch.testing.assert_close(SmoothedDPO(0.2)(of_ratio(ratio), 0.3), smooth)


def test_a_margin_of_the_data_asks_for_more_distance() -> None:
    from dataclasses import replace

    both = of_ratio(torch.tensor([4.0], dtype=torch.float64))
    asked = replace(both, margin=torch.tensor([[1.5]], dtype=torch.float64))
    assert dpo(asked, 0.5).item() == pytest.approx(math.log1p(math.exp(-(0.5 * 4.0 - 1.5))))
    # what looks at M alone sees it that much smaller, as if the log-ratio were 4 - 1.5 / 0.5
    nearer = of_ratio(torch.tensor([1.0], dtype=torch.float64))
    for loss in (dpo, hinge, SmoothedDPO(0.1), RobustDPO(0.1), EXO(0.1), DiscoPOP()):
        torch.testing.assert_close(loss(asked, 0.5), loss(nearer, 0.5))
    # and what looks at each caption alone would drop it
    for other in (ipo, IPO(), nca, sppo, apo_zero, apo_down, bco, AOT(), SimPO(), CPO(), orpo):
        with pytest.raises(ConfigError, match="does not support a margin of the data"):
            other(asked, 0.5)
    both_ways = WeightedSum([dpo, sft], [1.0, 0.5])
    torch.testing.assert_close(both_ways(asked, 0.5), dpo(asked, 0.5) + 0.5 * sft(asked))


def test_ipo_is_least_where_the_log_ratio_is_half_the_inverse_of_beta() -> None:
    ratio = torch.tensor([5.0], dtype=torch.float64, requires_grad=True)
    ipo(of_ratio(ratio), 0.1).sum().backward()
    assert ratio.grad is not None and ratio.grad.item() == pytest.approx(0.0)
    assert ipo(of_ratio(torch.tensor([2.0])), 0.25).item() == 0.0
    assert ipo(of_ratio(torch.tensor([3.0])), 0.25).item() == pytest.approx(1.0)


def test_losses_without_a_reference_equal_their_formulas() -> None:
    comparison = drawn()[0]
    rows = zip(
        *(part[:, 0].tolist() for part in (comparison.chosen, comparison.rejected)),
        *(part[:, 0].tolist() for part in (comparison.chosen_lengths, comparison.rejected_lengths)),
        strict=True,
    )
    for place, (chosen, rejected, first, second) in enumerate(rows):
        good, bad = chosen / first, rejected / second
        simpo = math.log1p(math.exp(-(2.0 * (good - bad) - 0.5)))
        assert SimPO(0.5)(comparison, 2.0)[place].item() == pytest.approx(simpo, rel=1e-6)
        odds = math.log(math.exp(good) / (1 - math.exp(good))) - math.log(math.exp(bad) / (1 - math.exp(bad)))
        assert odds_ratio(comparison, 0.3)[place].item() == pytest.approx(0.3 * math.log1p(math.exp(-odds)), rel=1e-5)
        assert orpo(comparison, 0.3)[place].item() == pytest.approx(-good + 0.3 * math.log1p(math.exp(-odds)), rel=1e-5)
        cpo = math.log1p(math.exp(-0.1 * (chosen - rejected))) - good
        assert CPO()(comparison, 0.1)[place].item() == pytest.approx(cpo, rel=1e-6)


def test_weighted_sums_are_sums() -> None:
    comparison = drawn()[0]
    mpo = WeightedSum([dpo, bco, sft], [0.8, 0.2, 1.0])
    expected = 0.8 * dpo(comparison, 0.1) + 0.2 * bco(comparison, 0.1) + sft(comparison)
    torch.testing.assert_close(mpo(comparison, 0.1), expected)
    with pytest.raises(ConfigError, match="2 losses have 1 weights"):
        WeightedSum([dpo, sft], [1.0])


@pytest.mark.parametrize("loss", [loss for loss, _ in SAME.values()] + [SimPO(), CPO(), orpo])
def test_absent_captions_change_nothing(loss: Any) -> None:
    whole = drawn(5)[0]

    def parts(comparison: Comparison) -> list[Tensor]:
        names = ("chosen", "rejected", "reference_chosen", "reference_rejected", "chosen_lengths", "rejected_lengths")
        return [getattr(comparison, name) for name in names]

    # a sixth comparison that is absent, with numbers that would stand out
    padded = [torch.cat([part, torch.full((1, 1), -9).to(part.dtype)]) for part in parts(whole)]
    present = torch.cat([whole.present, torch.zeros(1, 1, dtype=torch.bool)])
    longer = Comparison(*padded, present)
    torch.testing.assert_close(loss(longer, 0.5)[:5], loss(whole, 0.5))


@pytest.mark.parametrize("kind", [SmoothedDPO, AOT, SimPO, CPO])
@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan])
def test_label_smoothing_is_a_share(kind: Any, share: float) -> None:
    with pytest.raises(ConfigError, match="label_smoothing is"):
        kind(label_smoothing=share)


def test_a_blend_without_a_width_is_refused() -> None:
    with pytest.raises(ConfigError, match="temperature is 0"):
        DiscoPOP(0.0)


@pytest.mark.parametrize("loss", [SimPO(), IPO(), sft, orpo])
def test_means_per_token_are_not_divided_by_the_lengths_again(loss: Any) -> None:
    both = drawn()[0]
    torch.testing.assert_close(loss(both.per_token(), 0.5), loss(both, 0.5))


def test_means_per_token_and_over_captions_leave_padding_out() -> None:
    both = Comparison.of(torch.tensor([[-6.0, -5.0]]), torch.tensor([[-3.0, -1.0]]), torch.tensor([[3, 0]]))
    means = both.per_token()
    assert means.chosen.tolist() == [[-2.0]] and means.rejected.tolist() == [[-5.0]]
    assert means.reference_chosen.tolist() == [[-1.0]] and not both.present.any()
    values = torch.tensor([[1.0, 3.0], [7.0, float("nan")]])
    assert mean_of_means(values, torch.tensor([[True, True], [True, False]])).item() == pytest.approx(4.5)
