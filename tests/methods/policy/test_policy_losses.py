"""Advantages and losses of policy optimisation against TRL's own code and the equations written out in float64."""

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


def drawn() -> dict[str, Tensor]:
    """Log-probabilities of samples of different lengths, far enough apart that ratios are clipped at both ends."""
    generator = torch.Generator().manual_seed(7)
    shape = (PAIRS, SAMPLES, LENGTH)
    lengths = torch.randint(1, LENGTH + 1, shape[:2], generator=generator)
    policy, old, reference = (-2 * torch.rand(shape, generator=generator, dtype=torch.float64) for _ in range(3))
    rewards = torch.randn(shape[:2], generator=generator, dtype=torch.float64)
    return {
        "policy": policy,
        "old": old,
        "reference": reference,
        "mask": torch.arange(LENGTH)[None, None] < lengths[..., None],
        "advantages": group_relative(rewards),
        "rewards": rewards,
    }


# ---- TRL's code --------------------------------------------------------------------------------------------


def trl_loss(kind: str, level: str, beta: float, high: float) -> float:
    """Loss of TRL's GRPOTrainer for the drawn samples, by its own method on stand-ins for trainer and model."""
    trainer_class = pytest.importorskip("trl.trainer.grpo_trainer", reason="TRL is the oracle").GRPOTrainer
    found = {name: value.flatten(0, 1) for name, value in drawn().items()}
    mask = found["mask"].double()
    blank = torch.zeros_like(mask)
    trainer = SimpleNamespace(
        model=SimpleNamespace(training=True),
        _get_per_token_logps_and_entropies=lambda *unused, **ignored: (found["policy"], blank, None),
        accelerator=SimpleNamespace(
            num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x, sync_gradients=True
        ),
        args=SimpleNamespace(use_bias_correction_kl=False, delta=None, steps_per_generation=1),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level=level,
        beta=beta,
        loss_type=kind,
        epsilon_low=0.2,
        epsilon_high=high,
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
        "advantages": found["advantages"],
        "old_per_token_logps": found["old"],
        "ref_per_token_logps": found["reference"],
        "num_items_in_batch": mask.sum(),
    }
    return float(trainer_class._compute_loss(trainer, None, inputs))


AVERAGING: dict[str, Any] = {"grpo": "sample", "dapo": "token", "dr_grpo": "constant"}


@pytest.mark.parametrize("kind", AVERAGING)
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize(("beta", "high"), [(0.0, 0.2), (0.04, 0.28)])
def test_losses_equal_those_of_trl(kind: str, level: Any, beta: float, high: float) -> None:
    found = drawn()
    mask = found["mask"]
    ratio = importance_ratio(found["policy"], found["old"], mask, level)
    losses = clipped_surrogate(ratio, found["advantages"], 0.2, high) + beta * kl_k3(
        found["policy"], found["reference"]
    )
    loss = float(average(losses, mask, AVERAGING[kind], length=LENGTH))
    assert loss == pytest.approx(trl_loss(kind, level, beta, high), abs=1e-6)
    assert 0.05 < float((is_clipped(ratio, found["advantages"], 0.2, high) & mask).double().mean()) < 0.9


# ---- equations ---------------------------------------------------------------------------------------------


def test_advantages_are_their_formulas() -> None:
    rewards = drawn()["rewards"]
    for b, row in enumerate(rewards.tolist()):
        mean = sum(row) / SAMPLES
        deviation = math.sqrt(sum((r - mean) ** 2 for r in row) / (SAMPLES - 1))
        for k, reward in enumerate(row):
            others = (sum(row) - reward) / (SAMPLES - 1)
            assert float(group_relative(rewards)[b, k]) == pytest.approx((reward - mean) / (deviation + EPSILON))
            assert float(dr_grpo(rewards)[b, k]) == pytest.approx(reward - mean)
            assert float(leave_one_out(rewards)[b, k]) == pytest.approx(reward - others)
            assert float(self_critical(rewards, rewards[:, :1])[b, k]) == pytest.approx(reward - row[0])
    every = rewards.flatten().tolist()
    mean = sum(every) / len(every)
    deviation = math.sqrt(sum((r - mean) ** 2 for r in every) / (len(every) - 1))
    assert float(batch_std(rewards)) == pytest.approx(deviation)
    expected = (rewards - rewards.mean(1, keepdim=True)) / (deviation + EPSILON)
    torch.testing.assert_close(group_relative(rewards, "batch"), expected)
    assert has_spread(torch.tensor([[1.0, 1.0], [1.0, 2.0]])).tolist() == [False, True]


def test_losses_are_their_formulas() -> None:
    found = drawn()
    policy, old, mask, advantages = (found[name] for name in ("policy", "old", "mask", "advantages"))
    token, caption = (importance_ratio(policy, old, mask, level) for level in ("token", "sequence"))  # type: ignore[arg-type]
    losses = clipped_surrogate(token, advantages, 0.2, 0.28)
    per_sample, per_token = [], []
    for b in range(PAIRS):
        for k in range(SAMPLES):
            length = int(mask[b, k].sum())
            change = [float(policy[b, k, t] - old[b, k, t]) for t in range(length)]
            assert float(caption[b, k, 0]) == pytest.approx(math.exp(sum(change) / length))
            own = []
            for t in range(length):
                ratio, advantage = math.exp(change[t]), float(advantages[b, k])
                clipped = min(max(ratio, 0.8), 1.28)
                own.append(-min(ratio * advantage, clipped * advantage))
                assert float(losses[b, k, t]) == pytest.approx(own[-1])
            per_sample.append(sum(own) / length)
            per_token += own
    assert float(average(losses, mask, "sample")) == pytest.approx(sum(per_sample) / len(per_sample))
    assert float(average(losses, mask, "token")) == pytest.approx(sum(per_token) / len(per_token))
    expected = sum(per_token) / (PAIRS * SAMPLES * 10)
    assert float(average(losses, mask, "constant", length=10)) == pytest.approx(expected)
    kept = torch.tensor([True, False, True])
    both = torch.cat([losses[:1], losses[2:]]), torch.cat([mask[:1], mask[2:]])
    for kind in AVERAGING.values():
        assert float(average(losses, mask, kind, kept, 10)) == pytest.approx(float(average(*both, kind, length=10)))
        assert float(average(losses, mask, kind, torch.zeros(3, dtype=torch.bool), 10)) == 0.0


@pytest.mark.parametrize("kind", ["sample", "token", "constant"])
def test_one_pair_kept_among_many_processes_counts_as_in_one(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mask, ranks = torch.ones(1, 2, 1, dtype=torch.bool), 8
    monkeypatch.setattr(losses_of_policies, "mean_over_processes", lambda mine: torch.tensor(2.0 / ranks))
    parts = [average(mask.double(), mask, kind, torch.tensor([rank == 3]), 1) for rank in range(ranks)]
    assert float(torch.stack(parts).mean()) == pytest.approx(1.0), "gradients are averaged over processes"
    monkeypatch.setattr(losses_of_policies, "mean_over_processes", lambda mine: torch.zeros(()))
    assert float(average(mask.double(), mask, kind, torch.tensor([False]), 1)) == 0.0


def test_the_clipped_gradient_is_zero_where_it_says_so_and_the_divergence_is_unbiased() -> None:
    found = drawn()
    policy = found["policy"].requires_grad_()
    ratio = importance_ratio(policy, found["old"], found["mask"])
    clipped_surrogate(ratio, found["advantages"], 0.2, 0.28).sum().backward()
    clipped = is_clipped(ratio.detach(), found["advantages"], 0.2, 0.28)
    assert policy.grad is not None
    assert torch.equal(policy.grad == 0, clipped) and bool(clipped.any()) and not bool(clipped.all())
    # over all outcomes of a small distribution the estimate is the divergence itself
    p, q = (torch.randn(5, generator=torch.Generator().manual_seed(s)).double().log_softmax(0) for s in (1, 2))
    estimate, exact = (p.exp() * kl_k3(p, q)).sum(), (p.exp() * (p - q)).sum()
    assert float(estimate) == pytest.approx(float(exact)) and bool((kl_k3(p, q) >= 0).all())
