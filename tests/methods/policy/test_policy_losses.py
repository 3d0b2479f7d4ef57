"""Advantages and losses of policy optimisation, compared with TRL's own code and with the equations in float64."""

from __future__ import annotations

import math
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_idc.methods.policy import losses as losses_of_policies
from lightning_idc.methods.policy.advantages import (
    EPSILON,
    batch_std,
    dr_grpo,
    group_relative,
    has_spread,
    leave_one_out,
    self_critical,
)
from lightning_idc.methods.policy.losses import average, clipped_surrogate, importance_ratio, is_clipped, kl_k3

PAIRS, SAMPLES, LENGTH = 3, 4, 6


def random_samples() -> dict[str, Tensor]:
    """Return log-probabilities of samples of different lengths, with ratios beyond both clipping bounds."""
    generator = torch.Generator().manual_seed(7)
    shape = (PAIRS, SAMPLES, LENGTH)
    lengths = torch.randint(1, LENGTH + 1, shape[:2], generator=generator)
    log_probs, old_log_probs, reference = (
        -2 * torch.rand(shape, generator=generator, dtype=torch.float64) for _ in range(3)
    )
    rewards = torch.randn(shape[:2], generator=generator, dtype=torch.float64)
    return {
        "policy": log_probs,
        "old": old_log_probs,
        "reference": reference,
        "mask": torch.arange(LENGTH)[None, None] < lengths[..., None],
        "advantages": group_relative(rewards),
        "rewards": rewards,
    }


# ---- TRL's code --------------------------------------------------------------------------------------------


def trl_loss(averaging: str, level: str, beta: float, clip_high: float) -> float:
    """Loss of TRL's GRPOTrainer for the random samples, with stubs for trainer and model."""
    trainer_class = pytest.importorskip("trl.trainer.grpo_trainer", reason="TRL is the oracle").GRPOTrainer
    samples = {name: value.flatten(0, 1) for name, value in random_samples().items()}
    mask = samples["mask"].double()
    blank = torch.zeros_like(mask)
    trainer = SimpleNamespace(
        model=SimpleNamespace(training=True),
        _get_per_token_logps_and_entropies=lambda *unused, **ignored: (samples["policy"], blank, None),
        accelerator=SimpleNamespace(
            num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x, sync_gradients=True
        ),
        args=SimpleNamespace(use_bias_correction_kl=False, delta=None, steps_per_generation=1),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level=level,
        beta=beta,
        loss_type=averaging,
        epsilon_low=0.2,
        epsilon_high=clip_high,
        use_vllm=False,
        current_gradient_accumulation_steps=1,
        max_completion_length=LENGTH,
        _entropy_bonus_enabled=False,
        _metrics={"train": defaultdict(list)},
    )
    ids = torch.zeros(mask.shape, dtype=torch.long)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": ids[:, :1],
        "completion_ids": ids,
        "completion_mask": mask,
        "advantages": samples["advantages"],
        "old_per_token_logps": samples["old"],
        "ref_per_token_logps": samples["reference"],
        "num_items_in_batch": mask.sum(),
    }
    return float(trainer_class._compute_loss(trainer, None, inputs))


AVERAGING: dict[str, Any] = {"grpo": "sample", "dapo": "token", "dr_grpo": "constant"}


@pytest.mark.parametrize("averaging", AVERAGING)
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize(("beta", "clip_high"), [(0.0, 0.2), (0.04, 0.28)])
def test_losses_equal_trl(averaging: str, level: Any, beta: float, clip_high: float) -> None:
    samples = random_samples()
    mask = samples["mask"]
    ratio = importance_ratio(samples["policy"], samples["old"], mask, level)
    losses = clipped_surrogate(ratio, samples["advantages"], 0.2, clip_high) + beta * kl_k3(
        samples["policy"], samples["reference"]
    )
    loss = float(average(losses, mask, AVERAGING[averaging], max_length=LENGTH))
    assert loss == pytest.approx(trl_loss(averaging, level, beta, clip_high), abs=1e-6)
    assert 0.05 < float((is_clipped(ratio, samples["advantages"], 0.2, clip_high) & mask).double().mean()) < 0.9


# ---- equations ---------------------------------------------------------------------------------------------


def test_advantages_equal_their_formulas() -> None:
    rewards = random_samples()["rewards"]
    for b, row in enumerate(rewards.tolist()):
        mean = sum(row) / SAMPLES
        deviation = math.sqrt(sum((r - mean) ** 2 for r in row) / (SAMPLES - 1))
        for k, reward in enumerate(row):
            others = (sum(row) - reward) / (SAMPLES - 1)
            assert float(group_relative(rewards)[b, k]) == pytest.approx((reward - mean) / (deviation + EPSILON))
            assert float(dr_grpo(rewards)[b, k]) == pytest.approx(reward - mean)
            assert float(leave_one_out(rewards)[b, k]) == pytest.approx(reward - others)
            assert float(self_critical(rewards, rewards[:, :1])[b, k]) == pytest.approx(reward - row[0])
    all_rewards = rewards.flatten().tolist()
    mean = sum(all_rewards) / len(all_rewards)
    deviation = math.sqrt(sum((r - mean) ** 2 for r in all_rewards) / (len(all_rewards) - 1))
    assert float(batch_std(rewards)) == pytest.approx(deviation)
    expected = (rewards - rewards.mean(1, keepdim=True)) / (deviation + EPSILON)
    torch.testing.assert_close(group_relative(rewards, "batch"), expected)
    assert has_spread(torch.tensor([[1.0, 1.0], [1.0, 2.0]])).tolist() == [False, True]


def test_losses_equal_their_formulas() -> None:
    samples = random_samples()
    log_probs, old_log_probs, mask, advantages = (samples[name] for name in ("policy", "old", "mask", "advantages"))
    token, caption = (importance_ratio(log_probs, old_log_probs, mask, level) for level in ("token", "sequence"))  # type: ignore[arg-type]
    losses = clipped_surrogate(token, advantages, 0.2, 0.28)
    per_sample, per_token = [], []
    for b in range(PAIRS):
        for k in range(SAMPLES):
            length = int(mask[b, k].sum())
            change = [float(log_probs[b, k, t] - old_log_probs[b, k, t]) for t in range(length)]
            assert float(caption[b, k, 0]) == pytest.approx(math.exp(sum(change) / length))
            token_losses = []
            for t in range(length):
                ratio, advantage = math.exp(change[t]), float(advantages[b, k])
                clipped = min(max(ratio, 0.8), 1.28)
                token_losses.append(-min(ratio * advantage, clipped * advantage))
                assert float(losses[b, k, t]) == pytest.approx(token_losses[-1])
            per_sample.append(sum(token_losses) / length)
            per_token += token_losses
    assert float(average(losses, mask, "sample")) == pytest.approx(sum(per_sample) / len(per_sample))
    assert float(average(losses, mask, "token")) == pytest.approx(sum(per_token) / len(per_token))
    expected = sum(per_token) / (PAIRS * SAMPLES * 10)
    assert float(average(losses, mask, "constant", max_length=10)) == pytest.approx(expected)
    pair_mask = torch.tensor([True, False, True])
    both = torch.cat([losses[:1], losses[2:]]), torch.cat([mask[:1], mask[2:]])
    for averaging in AVERAGING.values():
        assert float(average(losses, mask, averaging, pair_mask=pair_mask, max_length=10)) == pytest.approx(
            float(average(*both, averaging, max_length=10))
        )
        assert float(average(losses, mask, averaging, pair_mask=torch.zeros(3, dtype=torch.bool), max_length=10)) == 0.0


@pytest.mark.parametrize("averaging", ["sample", "token", "constant"])
def test_average_over_processes_equals_one_process(averaging: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mask, ranks = torch.ones(1, 2, 1, dtype=torch.bool), 8
    monkeypatch.setattr(losses_of_policies, "mean_over_processes", lambda mine: torch.tensor(2.0 / ranks))
    parts = [
        average(mask.double(), mask, averaging, pair_mask=torch.tensor([rank == 3]), max_length=1)
        for rank in range(ranks)
    ]
    assert float(torch.stack(parts).mean()) == pytest.approx(1.0), "gradients are averaged over processes"
    monkeypatch.setattr(losses_of_policies, "mean_over_processes", lambda mine: torch.zeros(()))
    assert float(average(mask.double(), mask, averaging, pair_mask=torch.tensor([False]), max_length=1)) == 0.0


def test_clipped_gradients_are_zero_and_k3_is_unbiased() -> None:
    samples = random_samples()
    log_probs = samples["policy"].requires_grad_()
    ratio = importance_ratio(log_probs, samples["old"], samples["mask"])
    clipped_surrogate(ratio, samples["advantages"], 0.2, 0.28).sum().backward()
    clipped = is_clipped(ratio.detach(), samples["advantages"], 0.2, 0.28)
    assert log_probs.grad is not None
    assert torch.equal(log_probs.grad == 0, clipped) and bool(clipped.any()) and not bool(clipped.all())
    # the exact expectation of the estimate, over all outcomes of a small distribution
    p, q = (torch.randn(5, generator=torch.Generator().manual_seed(s)).double().log_softmax(0) for s in (1, 2))
    estimate, exact = (p.exp() * kl_k3(p, q)).sum(), (p.exp() * (p - q)).sum()
    assert float(estimate) == pytest.approx(float(exact)) and bool((kl_k3(p, q) >= 0).all())
