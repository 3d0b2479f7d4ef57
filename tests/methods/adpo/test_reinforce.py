"""REINFORCE against the exact gradient of the expected reward, enumerated over a small pool (ADPO Eq. 7)."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from lightning_idc.methods.adpo.pool import CaptionPool, choose
from lightning_idc.methods.adpo.reinforce import Baseline, LeaveOneOut, NoBaseline, RunningMean, entropy, reinforce
from lightning_idc.utils.errors import ConfigError, DataError

PAIRS, CANDIDATES, WIDTH, DRAWS = 3, 6, 4, 4000


class Problem:
    """A retriever of one matrix, and the losses that each candidate would cause."""

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
        """Gradient of E[R] by summing over every candidate."""
        q = self.logits().masked_fill(~self.allowed, float("-inf")).softmax(-1)
        (gradient,) = torch.autograd.grad((q * self.rewards).sum(-1).mean(), self.head)
        return gradient

    def estimates(self, baseline: Baseline) -> Tensor:
        """Gradients of many single steps, in the direction of ascent."""
        found = []
        for _ in range(DRAWS):
            columns, log_probs = choose(self.logits(), self.allowed, 1)
            rewards = self.rewards.gather(1, columns)[:, 0]
            loss = reinforce(log_probs.gather(1, columns)[:, 0], rewards, baseline(rewards))
            found.append(-torch.autograd.grad(loss, self.head)[0])
        return torch.stack(found)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [NoBaseline, RunningMean, LeaveOneOut])
def test_the_estimate_is_the_exact_gradient_within_sampling_error(kind: type[Baseline]) -> None:
    torch.manual_seed(0)
    problem = Problem()
    estimates = problem.estimates(kind())
    error = estimates.std(0) / math.sqrt(DRAWS)
    # 16 entries; 4.5 standard errors are passed by chance once in 10,000 runs
    assert ((estimates.mean(0) - problem.exact()).abs() <= 4.5 * error).all()
    assert (error > 0).all()


@pytest.mark.slow
def test_a_baseline_lowers_the_variance() -> None:
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


def test_running_mean_never_sees_the_reward_it_is_for() -> None:
    baseline = RunningMean(0.5)
    assert baseline(torch.tensor([4.0, 6.0])).tolist() == [6.0, 4.0], "of the first step only the other one is known"
    assert baseline(torch.tensor([1.0])).tolist() == [5.0]
    assert baseline(torch.tensor([0.0])).item() == pytest.approx((0.25 * 5 + 0.5 * 1) / 0.75)


@pytest.mark.parametrize("momentum", [-0.1, 1.0, 1.5])
def test_a_mean_that_never_moves_or_runs_away_is_refused(momentum: float) -> None:
    with pytest.raises(ConfigError, match="momentum is"):
        RunningMean(momentum)


def test_leave_one_out_is_the_mean_of_the_others() -> None:
    assert LeaveOneOut()(torch.tensor([1.0, 2.0, 6.0])).tolist() == [4.0, 3.5, 1.5]
    assert LeaveOneOut()(torch.tensor([1.0])).tolist() == [0.0]


def test_entropy_counts_what_can_be_chosen() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0]])
    _, log_probs = choose(logits, torch.tensor([[True, True, False, True]]), 1)
    assert entropy(log_probs).exp().item() == pytest.approx(3.0)


def test_processes_draw_from_shares_of_the_pool() -> None:
    pool = CaptionPool(f"caption {i}" for i in range(23))

    def drawn(size: int, rank: int, processes: int) -> set[int]:
        return set(pool.draw(size, torch.Generator().manual_seed(rank), rank, processes).tolist())

    shares = [drawn(7, rank, 3) for rank in range(3)]
    assert [len(share) for share in shares] == [7] * 3 and len(set.union(*shares)) == 21
    assert [len(drawn(8, rank, 3)) for rank in range(3)] == [8] * 3, "shares of 7 and 8 would be too small for 8"
    assert drawn(7, 0, 1) == set(pool.draw(7, torch.Generator().manual_seed(0)).tolist())


def test_pool_keeps_how_often_a_caption_is_said_and_never_offers_a_reference() -> None:
    said = ["A cube moved.", "a cube moved .", "a ball moved", "nothing changed"]
    pool = CaptionPool(said)
    assert pool.texts == ["A cube moved.", "a ball moved", "nothing changed"]
    places = pool.draw(128, torch.Generator().manual_seed(0))
    assert sorted(places.tolist()) == [0, 0, 1, 2], "a random caption of another pair is twice as often the cube's"
    assert sorted(CaptionPool(said, "distinct").draw(128, torch.Generator()).tolist()) == [0, 1, 2]
    allowed = pool.is_wrong(places, [["a CUBE moved."], ["unheard of"]])
    assert {pool.texts[p] for p in places[allowed[0]]} == {"a ball moved", "nothing changed"}
    assert allowed[1].all()
    columns, _ = choose(torch.zeros(2, 4), allowed, 500)
    assert not (places[columns[0]] == 0).any()
    with pytest.raises(DataError, match="references of one pair"):
        pool.is_wrong(places, [pool.texts])
    with pytest.raises(DataError, match="at least two"):
        CaptionPool(["one", "One"])
    with pytest.raises(ConfigError, match="weighting is 'often'"):
        CaptionPool(said, "often")  # type: ignore[arg-type]


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_a_stratified_pool_gives_changed_pairs_a_share_of_no_change_sentences(share: float) -> None:
    same = ["nothing changed", "all is as it was"]
    pool = CaptionPool([*(f"caption {i}" for i in range(40)), *same * 20], "stratified", same, share)
    generator = torch.Generator().manual_seed(1)
    references = [["caption 3"]] * 200 + [same] * 200
    places, allowed = pool.offer(16, references, generator)
    unchanged = pool.is_no_change[places]
    given = (allowed & unchanged).any(1)
    assert not (given & (allowed & ~unchanged).any(1)).any(), "a pair is given one stratum, never both"
    assert not given[200:].any() and allowed[200:].any(1).all(), "of unchanged pairs it is true that nothing changed"
    # 200 coins; 4.5 standard deviations of a share of 0.3 are 0.146
    assert abs(float(given[:200].float().mean()) - share) <= (0.146 if share == 0.3 else 0.0)


def test_processes_share_the_mean_of_the_rewards_and_none_is_no_reward() -> None:
    baseline = RunningMean(0.5)
    baseline(torch.tensor([4.0, 6.0]))
    assert baseline(torch.tensor([])).shape == (0,)
    assert baseline(torch.tensor([1.0])).tolist() == [5.0], "a step without a reward leaves the mean as it was"
