"""REINFORCE against the exact gradient of the expected reward, enumerated over a small pool (ADPO Eq. 7)."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from lightning_idc.methods.adpo.pool import CaptionPool, sample_negatives
from lightning_idc.methods.adpo.reinforce import Baseline, LeaveOneOut, NoBaseline, RunningMean, entropy, reinforce
from lightning_idc.utils.errors import ConfigError, DataError

PAIRS, CANDIDATES, WIDTH, DRAWS = 3, 6, 4, 4000


class Problem:
    """A retriever with one weight matrix and a fixed reward for each candidate."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(5)
        self.pairs = torch.randn(PAIRS, WIDTH, generator=generator)
        self.captions = torch.randn(CANDIDATES, WIDTH, generator=generator)
        self.rewards = 2 + torch.rand(PAIRS, CANDIDATES, generator=generator)
        self.allowed = torch.rand(PAIRS, CANDIDATES, generator=generator) < 0.8
        self.head = nn.Parameter(torch.randn(WIDTH, WIDTH, generator=generator) / 2)

    def logits(self) -> Tensor:
        return self.pairs @ self.head @ self.captions.T

    def exact(self) -> Tensor:
        """Gradient of E[R], computed by summing over all candidates."""
        q = self.logits().masked_fill(~self.allowed, float("-inf")).softmax(-1)
        (gradient,) = torch.autograd.grad((q * self.rewards).sum(-1).mean(), self.head)
        return gradient

    def estimates(self, baseline: Baseline) -> Tensor:
        """Gradients of many independent single steps, in the direction of ascent."""
        gradients = []
        for _ in range(DRAWS):
            columns, log_probs = sample_negatives(self.logits(), self.allowed, 1)
            rewards = self.rewards.gather(1, columns)[:, 0]
            loss = reinforce(log_probs.gather(1, columns)[:, 0], rewards, baseline(rewards))
            gradients.append(-torch.autograd.grad(loss, self.head)[0])
        return torch.stack(gradients)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [NoBaseline, RunningMean, LeaveOneOut])
def test_reinforce_is_unbiased(kind: type[Baseline]) -> None:
    torch.manual_seed(0)
    problem = Problem()
    estimates = problem.estimates(kind())
    error = estimates.std(0) / math.sqrt(DRAWS)
    # 16 entries: one of them exceeds 4.5 standard errors by chance once in 10,000 runs
    assert ((estimates.mean(0) - problem.exact()).abs() <= 4.5 * error).all()
    assert (error > 0).all()


@pytest.mark.slow
def test_baselines_lower_the_variance() -> None:
    torch.manual_seed(0)
    problem = Problem()
    without, with_mean, with_others = (
        problem.estimates(kind()).var(0).sum() for kind in (NoBaseline, RunningMean, LeaveOneOut)
    )
    assert with_mean < without / 3 and with_others < without / 3


def test_ascent_raises_the_reward_and_the_sign_of_algorithm_1_lowers_it() -> None:
    torch.manual_seed(0)
    problem = Problem()
    gradient = problem.exact()

    def expected(head: Tensor) -> Tensor:
        logits = problem.pairs @ head @ problem.captions.T
        return (logits.masked_fill(~problem.allowed, float("-inf")).softmax(-1) * problem.rewards).sum(-1).mean()

    now = expected(problem.head)
    assert expected(problem.head + 0.1 * gradient) > now > expected(problem.head - 0.1 * gradient)


def test_running_mean_excludes_the_current_reward() -> None:
    baseline = RunningMean(0.5)
    assert baseline(torch.tensor([4.0, 6.0])).tolist() == [6.0, 4.0], "in the first step, the mean of the other rewards"
    assert baseline(torch.tensor([1.0])).tolist() == [5.0]
    assert baseline(torch.tensor([0.0])).item() == pytest.approx((0.25 * 5 + 0.5 * 1) / 0.75)


@pytest.mark.parametrize("momentum", [-0.1, 1.0, 1.5])
def test_running_mean_rejects_invalid_momentum(momentum: float) -> None:
    with pytest.raises(ConfigError, match="momentum is"):
        RunningMean(momentum)


def test_leave_one_out() -> None:
    assert LeaveOneOut()(torch.tensor([1.0, 2.0, 6.0])).tolist() == [4.0, 3.5, 1.5]
    assert LeaveOneOut()(torch.tensor([1.0])).tolist() == [0.0]


def test_entropy_ignores_impossible_choices() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0]])
    _, log_probs = sample_negatives(logits, torch.tensor([[True, True, False, True]]), 1)
    assert entropy(log_probs).exp().item() == pytest.approx(3.0)


def test_processes_draw_from_disjoint_parts_of_the_pool() -> None:
    pool = CaptionPool(f"caption {i}" for i in range(23))

    def draw_indices(size: int, rank: int, processes: int) -> set[int]:
        return set(pool.draw(size, torch.Generator().manual_seed(rank), rank, processes).tolist())

    parts = [draw_indices(7, rank, 3) for rank in range(3)]
    assert [len(part) for part in parts] == [7] * 3 and len(set.union(*parts)) == 21
    assert [len(draw_indices(8, rank, 3)) for rank in range(3)] == [8] * 3, (
        "parts of 7 and 8 captions are too small for 8 draws"
    )
    assert draw_indices(7, 0, 1) == set(pool.draw(7, torch.Generator().manual_seed(0)).tolist())


def test_pool_counts_captions_and_excludes_references() -> None:
    captions = ["A cube moved.", "a cube moved .", "a ball moved", "nothing changed"]
    pool = CaptionPool(captions)
    assert pool.texts == ["A cube moved.", "a ball moved", "nothing changed"]
    indices = pool.draw(128, torch.Generator().manual_seed(0))
    assert sorted(indices.tolist()) == [0, 0, 1, 2], "a random caption of another pair is twice as often the cube's"
    assert sorted(CaptionPool(captions, "distinct").draw(128, torch.Generator()).tolist()) == [0, 1, 2]
    allowed = pool.is_negative(indices, [["a CUBE moved."], ["unheard of"]])
    assert {pool.texts[p] for p in indices[allowed[0]]} == {"a ball moved", "nothing changed"}
    assert allowed[1].all()
    columns, _ = sample_negatives(torch.zeros(2, 4), allowed, 500)
    assert not (indices[columns[0]] == 0).any()
    with pytest.raises(DataError, match="references of one pair"):
        pool.is_negative(indices, [pool.texts])
    with pytest.raises(DataError, match="at least two"):
        CaptionPool(["one", "One"])
    with pytest.raises(ConfigError, match="weighting is 'often'"):
        CaptionPool(captions, "often")  # type: ignore[arg-type]


@pytest.mark.parametrize("fraction", [0.0, 0.3, 1.0])
def test_stratified_pool_gives_a_fraction_of_changed_pairs_no_change_sentences(fraction: float) -> None:
    no_change = ["nothing changed", "all is as it was"]
    pool = CaptionPool([*(f"caption {i}" for i in range(40)), *no_change * 20], "stratified", no_change, fraction)
    generator = torch.Generator().manual_seed(1)
    references = [["caption 3"]] * 200 + [no_change] * 200
    indices, allowed = pool.sample_candidates(16, references, generator)
    unchanged = pool.is_no_change[indices]
    gets_no_change = (allowed & unchanged).any(1)
    assert not (gets_no_change & (allowed & ~unchanged).any(1)).any(), "a pair gets one stratum, never both"
    assert not gets_no_change[200:].any() and allowed[200:].any(1).all(), (
        "unchanged pairs never get a no-change sentence"
    )
    # 200 draws; 4.5 standard deviations of a fraction of 0.3 are 0.146
    assert abs(float(gets_no_change[:200].float().mean()) - fraction) <= (0.146 if fraction == 0.3 else 0.0)


def test_running_mean_ignores_steps_without_rewards() -> None:
    baseline = RunningMean(0.5)
    baseline(torch.tensor([4.0, 6.0]))
    assert baseline(torch.tensor([])).shape == (0,)
    assert baseline(torch.tensor([1.0])).tolist() == [5.0], "a step without a reward leaves the mean as it was"
