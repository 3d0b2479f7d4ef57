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


def comparison_with_logits(logits: Tensor) -> Comparison:
    """Create one comparison for each logit in ``(N,)``."""
    zeros = torch.zeros_like(logits)[:, None]
    ones = torch.ones_like(logits)[:, None]
    return Comparison(
        chosen_logps=logits[:, None],
        rejected_logps=zeros,
        ref_chosen_logps=zeros,
        ref_rejected_logps=zeros,
        chosen_lengths=ones,
        rejected_lengths=ones,
        present=ones.bool(),
    )


def random_comparison(pairs: int = 6) -> tuple[Comparison, Tensor, Tensor, Tensor]:
    """Comparisons of captions of different lengths, and the log-probabilities of their tokens."""
    generator = torch.Generator().manual_seed(4)
    lengths = torch.randint(2, 7, (2 * pairs,), generator=generator)
    mask = torch.arange(7)[None] < lengths[:, None]
    policy, reference = (
        -3 * torch.rand(2 * pairs, 7, generator=generator, dtype=torch.float64) * mask for _ in range(2)
    )
    sums = [part.sum(1).view(2, pairs).T for part in (policy, reference)]
    return Comparison.from_logps(sums[0], sums[1], lengths.view(2, pairs).T), policy, reference, mask


# ---- TRL's code --------------------------------------------------------------------------------------------


def trl_loss(loss_type: str, beta: float, label_smoothing: float) -> float:
    """Loss of TRL's DPOTrainer for the random comparisons, by its own method with stubs for trainer and models."""
    module = pytest.importorskip("trl.trainer.dpo_trainer")
    _, policy, reference, mask = random_comparison()

    def model(log_probs: Tensor) -> Callable[..., Any]:
        blank = torch.zeros_like(log_probs)
        outputs = SimpleNamespace(log_probs=log_probs, entropy=blank, mean_logits=blank, is_top1=blank.bool())
        return lambda **unused: outputs

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
        loss_types=[loss_type],
        loss_weights=[1.0],
        beta=beta,
        label_smoothing=label_smoothing,
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


TRL_LOSSES = {
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


@pytest.mark.parametrize("loss_type", TRL_LOSSES)
@pytest.mark.parametrize("beta", [0.1, 0.7])
def test_losses_equal_trl(loss_type: str, beta: float) -> None:
    loss, label_smoothing = TRL_LOSSES[loss_type]
    comparison = random_comparison()[0]
    loss_value = float(comparison.mean(loss(comparison, beta)))
    # TRL computes in float32
    assert loss_value == pytest.approx(trl_loss(loss_type, beta, label_smoothing), abs=1e-6)


@pytest.mark.parametrize(("beta", "label_smoothing"), [(0.1, 0.0), (0.1, 0.1), (0.5, 0.0), (0.5, 0.1)])
def test_dpo_equals_stored_trl_values(shared: Path, beta: float, label_smoothing: float) -> None:
    from safetensors.torch import load_file

    folder = shared / "parity" / "dpo"
    if not folder.is_dir():
        pytest.skip("the parity fixture of DPO is not in the shared folder")
    logps = load_file(folder / "io.safetensors")
    expected = json.loads((folder / "meta.json").read_text())["out"][f"b{beta}_ls{label_smoothing}"]
    policy = torch.stack([logps["policy_chosen"], logps["policy_rejected"]], 1)
    reference = torch.stack([logps["reference_chosen"], logps["reference_rejected"]], 1)
    both = Comparison.from_logps(policy, reference, torch.ones_like(policy))
    assert dpo(both, beta, label_smoothing).mean().item() == pytest.approx(expected["loss"], abs=1e-7)
    assert (beta * both.chosen_logratios).mean().item() == pytest.approx(expected["chosen_rewards"], abs=1e-8)
    assert margin(both, beta).mean().item() == pytest.approx(expected["margin"], abs=1e-8)


# ---- the equations ----------------------------------------------------------------------------------------


def test_dpo_is_minus_the_log_of_the_bradley_terry_probability() -> None:
    ratio = torch.tensor([-30.0, -1.0, 0.0, 2.0, 800.0], dtype=torch.float64)
    expected = torch.tensor([math.log1p(math.exp(-0.3 * r)) for r in ratio.tolist()], dtype=torch.float64)
    torch.testing.assert_close(dpo(comparison_with_logits(ratio), 0.3)[:, 0], expected)
    torch.testing.assert_close(-preference_probability(0.3 * ratio, torch.zeros(5)).log(), expected)
    smooth = 0.8 * dpo(comparison_with_logits(ratio), 0.3) + 0.2 * dpo(comparison_with_logits(-ratio), 0.3)
    torch.testing.assert_close(dpo(comparison_with_logits(ratio), 0.3, 0.2), smooth)
    torch.testing.assert_close(SmoothedDPO(0.2)(comparison_with_logits(ratio), 0.3), smooth)


def test_data_margin_is_subtracted_or_rejected() -> None:
    from dataclasses import replace

    both = comparison_with_logits(torch.tensor([4.0], dtype=torch.float64))
    with_margin = replace(both, margin=torch.tensor([[1.5]], dtype=torch.float64))
    assert dpo(with_margin, 0.5).item() == pytest.approx(math.log1p(math.exp(-(0.5 * 4.0 - 1.5))))
    # losses that depend on M only subtract the margin, as if the log-ratio were 4 - 1.5 / 0.5
    reduced = comparison_with_logits(torch.tensor([1.0], dtype=torch.float64))
    for loss in (dpo, hinge, SmoothedDPO(0.1), RobustDPO(0.1), EXO(0.1), DiscoPOP()):
        torch.testing.assert_close(loss(with_margin, 0.5), loss(reduced, 0.5))
    # losses that depend on the reward of each caption separately do not support margins
    for other in (ipo, IPO(), nca, sppo, apo_zero, apo_down, bco, AOT(), SimPO(), CPO(), orpo):
        with pytest.raises(ConfigError, match="does not support preference margins of the data"):
            other(with_margin, 0.5)
    weighted = WeightedSum([dpo, sft], [1.0, 0.5])
    torch.testing.assert_close(weighted(with_margin, 0.5), dpo(with_margin, 0.5) + 0.5 * sft(with_margin))


def test_ipo_minimum_is_at_half_the_inverse_of_beta() -> None:
    ratio = torch.tensor([5.0], dtype=torch.float64, requires_grad=True)
    ipo(comparison_with_logits(ratio), 0.1).sum().backward()
    assert ratio.grad is not None and ratio.grad.item() == pytest.approx(0.0)
    assert ipo(comparison_with_logits(torch.tensor([2.0])), 0.25).item() == 0.0
    assert ipo(comparison_with_logits(torch.tensor([3.0])), 0.25).item() == pytest.approx(1.0)


def test_reference_free_losses_equal_their_formulas() -> None:
    comparison = random_comparison()[0]
    rows = zip(
        *(part[:, 0].tolist() for part in (comparison.chosen_logps, comparison.rejected_logps)),
        *(part[:, 0].tolist() for part in (comparison.chosen_lengths, comparison.rejected_lengths)),
        strict=True,
    )
    for index, (chosen, rejected, first, second) in enumerate(rows):
        good, bad = chosen / first, rejected / second
        simpo = math.log1p(math.exp(-(2.0 * (good - bad) - 0.5)))
        assert SimPO(0.5)(comparison, 2.0)[index].item() == pytest.approx(simpo, rel=1e-6)
        odds = math.log(math.exp(good) / (1 - math.exp(good))) - math.log(math.exp(bad) / (1 - math.exp(bad)))
        assert odds_ratio(comparison, 0.3)[index].item() == pytest.approx(0.3 * math.log1p(math.exp(-odds)), rel=1e-5)
        assert orpo(comparison, 0.3)[index].item() == pytest.approx(-good + 0.3 * math.log1p(math.exp(-odds)), rel=1e-5)
        cpo = math.log1p(math.exp(-0.1 * (chosen - rejected))) - good
        assert CPO()(comparison, 0.1)[index].item() == pytest.approx(cpo, rel=1e-6)


def test_weighted_sum() -> None:
    comparison = random_comparison()[0]
    mpo = WeightedSum([dpo, bco, sft], [0.8, 0.2, 1.0])
    expected = 0.8 * dpo(comparison, 0.1) + 0.2 * bco(comparison, 0.1) + sft(comparison)
    torch.testing.assert_close(mpo(comparison, 0.1), expected)
    with pytest.raises(ConfigError, match="2 losses have 1 weights"):
        WeightedSum([dpo, sft], [1.0])


@pytest.mark.parametrize("loss", [loss for loss, _ in TRL_LOSSES.values()] + [SimPO(), CPO(), orpo])
def test_losses_ignore_absent_captions(loss: Any) -> None:
    comparison = random_comparison(5)[0]

    def fields(comparison: Comparison) -> list[Tensor]:
        names = (
            "chosen_logps",
            "rejected_logps",
            "ref_chosen_logps",
            "ref_rejected_logps",
            "chosen_lengths",
            "rejected_lengths",
        )
        return [getattr(comparison, name) for name in names]

    # a sixth, absent comparison with values that would change the loss
    padded = [torch.cat([part, torch.full((1, 1), -9).to(part.dtype)]) for part in fields(comparison)]
    present = torch.cat([comparison.present, torch.zeros(1, 1, dtype=torch.bool)])
    longer = Comparison(*padded, present)
    torch.testing.assert_close(loss(longer, 0.5)[:5], loss(comparison, 0.5))


@pytest.mark.parametrize("loss_type", [SmoothedDPO, AOT, SimPO, CPO])
@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan])
def test_label_smoothing_must_be_a_probability(loss_type: Any, value: float) -> None:
    with pytest.raises(ConfigError, match="label_smoothing is"):
        loss_type(label_smoothing=value)


def test_discopop_rejects_zero_temperature() -> None:
    with pytest.raises(ConfigError, match="temperature is 0"):
        DiscoPOP(0.0)


@pytest.mark.parametrize("loss", [SimPO(), IPO(), sft, orpo])
def test_per_token_is_idempotent(loss: Any) -> None:
    both = random_comparison()[0]
    torch.testing.assert_close(loss(both.per_token(), 0.5), loss(both, 0.5))


def test_means_ignore_padding() -> None:
    both = Comparison.from_logps(torch.tensor([[-6.0, -5.0]]), torch.tensor([[-3.0, -1.0]]), torch.tensor([[3, 0]]))
    means = both.per_token()
    assert means.chosen_logps.tolist() == [[-2.0]] and means.rejected_logps.tolist() == [[-5.0]]
    assert means.ref_chosen_logps.tolist() == [[-1.0]] and not both.present.any()
    values = torch.tensor([[1.0, 3.0], [7.0, float("nan")]])
    assert mean_of_means(values, torch.tensor([[True, True], [True, False]])).item() == pytest.approx(4.5)
