"""GRPO with captions sampled by a server. Oracle: training without a server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.policy_server import PolicyServer
from helpers.servers import serving
from helpers.tiny import TinyCaptioner, TinySource
from helpers.training import Losses, assert_same, fit, host_state
from test_policy_optimisation import FAST, ColourReward

from lightning_idc.methods.policy.losses import clipped_surrogate, importance_ratio
from lightning_idc.methods.policy.policy import GroupRelative
from lightning_idc.methods.policy.rewards import LengthReward
from lightning_idc.methods.policy.server_rollouts import ServerRollouts
from lightning_idc.methods.policy.server_weights import ServerWeights
from lightning_idc.models.addon import TrainingStep, addons_of
from lightning_idc.synthesis.models import endpoint as module
from lightning_idc.synthesis.models.endpoint import Endpoint
from lightning_idc.utils.errors import ConfigError, IDCError


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[PolicyServer]:
    monkeypatch.setattr(module.time, "sleep", lambda seconds, sleep=time.sleep: sleep(min(seconds, 0.02)))
    policy_server = PolicyServer(lambda request: TinyCaptioner.from_pretrained(request["path"]))
    with serving(policy_server.http):
        yield policy_server


def rollouts(server: PolicyServer, folder: Path, every: int = 1, log_probs: Any = "server", **options: Any) -> Any:
    address = f"http://127.0.0.1:{server.http.server_address[1]}"
    weights = ServerWeights(str(folder), f"{address}/load", {"path": "{folder}"}, every=every, layout="captioner")
    endpoint = Endpoint(f"{address}/v1", "policy", **{"concurrency": 4, "retries": 1, **options})
    return ServerRollouts(endpoint, weights, log_probs)


def start(sft: str) -> TinyCaptioner:
    return TinyCaptioner(init_from=sft, learning_rates=FAST)


@pytest.mark.slow
@pytest.mark.parametrize("log_probs", ["server", "policy"])
def test_training_with_a_server_equals_training_without(
    log_probs: Any, sft: str, server: PolicyServer, tmp_path: Path
) -> None:
    def grpo() -> GroupRelative:
        return GroupRelative(ColourReward(), samples=4, averaging="token")

    def begin() -> TinyCaptioner:
        # Adam would scale up the rounding errors of gradients near 0
        return TinyCaptioner(init_from=sft, optimizer=lambda groups: torch.optim.SGD(groups, lr=1.0))

    expected_losses, losses = Losses(), Losses()
    expected = fit([grpo(), expected_losses], tmp_path, begin())
    callbacks = [grpo(), rollouts(server, tmp_path / "w", log_probs=log_probs), losses]
    actual = fit(callbacks, tmp_path, begin())
    assert len(losses.values) == 8 and max(map(abs, losses.values)) > 1e-3
    before = torch.load(sft, weights_only=True)["state_dict"]
    assert max(float((value - before[name]).abs().max()) for name, value in host_state(expected).items()) > 1e-2
    torch.testing.assert_close(torch.tensor(losses.values), torch.tensor(expected_losses.values), rtol=0, atol=1e-6)
    for name, value in host_state(expected).items():
        torch.testing.assert_close(host_state(actual)[name], value, rtol=0, atol=1e-6, msg=name)
    assert len(server.requests) == 8 * 4 and len(server.loaded) == 9, (
        "weights are transferred at the start and after each step"
    )
    assert [path.name for path in (tmp_path / "w").iterdir()] == [Path(server.loaded[-1]).name]
    assert actual.trainer.callback_metrics["train/reward"] == expected.trainer.callback_metrics["train/reward"]
    if log_probs == "server":
        assert 0 <= actual.trainer.callback_metrics["train/sampling/sampling_logp_difference/mean"] < 1e-5


@pytest.mark.slow
def test_stale_server_weights_are_corrected_by_the_ratio(sft: str, server: PolicyServer, tmp_path: Path) -> None:
    server.net = TinyCaptioner.load_from_checkpoint(sft).eval()
    reward = ColourReward()
    callbacks = [GroupRelative(reward, samples=6), rollouts(server, tmp_path / "w", every=10**6)]
    model = fit(callbacks, tmp_path, start(sft), max_epochs=4)
    assert len(server.loaded) == 1
    assert model.trainer.callback_metrics["train/sampling/sampling_logp_difference/mean"] > 0.01
    addon: Any = addons_of(model)["policy"]
    addon._log = lambda *unused: None  # the run is over
    addon.sampler = callbacks[1].sample_captions
    source = TinySource(4, 0)
    batch = model.eval().collate([source.load(i) for i in range(4)])
    step = TrainingStep(model, batch, 0, model.encode(batch))
    actual = addon.objective(step)
    # the same samples, scored by the current weights and by the weights that generated them
    rollout = addon._sample(step)
    current_log_probs = model.log_probs(step.features, rollout.tokens).detach()
    old_log_probs = server.net.log_probs(server.net.encode(batch), rollout.tokens)
    ratio = importance_ratio(current_log_probs, old_log_probs, rollout.mask)
    assert float((ratio[rollout.mask] - 1).abs().max()) > 0.05
    losses = clipped_surrogate(ratio, rollout.advantages) * rollout.mask
    expected = (losses.sum(-1) / rollout.mask.sum(-1)).mean()
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6)
    callbacks[1].log_probs = "policy"
    assert abs(float(addon.objective(step).detach() - expected)) > 1e-4, "with a ratio of 1 the loss differs"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answers", "loads"),
    [
        (4 * 6, 10**9),
        pytest.param(4 * 4, 10**9, marks=pytest.mark.slow),
        pytest.param(10**9, 3, marks=pytest.mark.slow),
    ],
)
def test_resume_after_a_server_failure_is_bit_equal(
    answers: int, loads: int, sft: str, server: PolicyServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def callbacks(name: str) -> list[Any]:
        return [GroupRelative(ColourReward(), samples=4), rollouts(server, tmp_path / name, every=2)]

    uninterrupted = fit(callbacks("whole"), tmp_path, start(sft), max_epochs=3)
    server.answers_left, server.loads_left = answers, loads
    folder = tmp_path / "run"
    with pytest.raises(IDCError, match=r"did not respond to 2 requests in a row .*status 503.*resume the run$"):
        fit(callbacks("weights"), folder, start(sft), max_epochs=3)
    saved = folder / "checkpoints" / "interrupted.ckpt"
    assert f"saved in {saved}" in capsys.readouterr().out
    server.answers_left = server.loads_left = 10**9
    server.net = None  # as after a restart without weights
    actual = fit(callbacks("weights"), folder, TinyCaptioner(), max_epochs=3, ckpt_path=saved)
    assert_same(host_state(actual), host_state(uninterrupted))


@pytest.mark.slow
def test_missing_captions_are_requested_again(sft: str, server: PolicyServer, tmp_path: Path) -> None:
    server.most = 1
    fit([GroupRelative(ColourReward(), samples=3), rollouts(server, tmp_path)], tmp_path, start(sft), max_steps=1)
    assert sorted(request["n"] for request in server.requests) == [1] * 4 + [2] * 4 + [3] * 4
    assert len({request["seed"] for request in server.requests}) == 12
    server.most = 10**9
    answered = iter(range(10**6))

    def empty(choice: dict[str, Any]) -> None:
        if next(answered) % 3 == 0:
            choice.update(message={"content": None}, finish_reason="stop")

    server.change = empty
    reward = ColourReward()
    callback = rollouts(server, tmp_path, log_probs="policy", concurrency=1)
    fit([GroupRelative(reward, samples=3), callback], tmp_path, start(sft), max_steps=1)
    assert [row[0] for row in reward.texts] == [""] * 4 and all(text for row in reward.texts for text in row[1:])


def without_ids(choice: dict[str, Any]) -> None:
    del choice["token_ids"]


def without_words(choice: dict[str, Any]) -> None:
    choice.update(message={"content": ""}, token_ids=[2], logprobs={"content": [{"logprob": -1.0}]})


def of_another_model(choice: dict[str, Any]) -> None:
    choice.update(
        message={"content": "an unheard of giraffe"}, token_ids=[9999], logprobs={"content": [{"logprob": -1}]}
    )


@pytest.mark.parametrize(
    ("change", "log_probs", "match"),
    [
        (without_ids, "server", "Set log_probs: policy for other servers"),
        (without_words, "server", "all 8 captions that the endpoint sampled for 4 pairs are empty"),
        (without_words, "policy", "all 8 captions that the endpoint sampled for 4 pairs are empty"),
        (of_another_model, "server", "must serve the same model"),
        (of_another_model, "policy", "'an unheard of giraffe', which holds tokens"),
    ],
)
def test_invalid_answers_raise_one_line_errors(
    change: Any, log_probs: Any, match: str, sft: str, server: PolicyServer, tmp_path: Path
) -> None:
    server.change = change
    callback = rollouts(server, tmp_path, log_probs=log_probs)
    with pytest.raises(IDCError, match=match) as error:
        fit([GroupRelative(ColourReward(), samples=2), callback], tmp_path, start(sft), max_steps=1)
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_timeouts_and_invalid_settings_raise_one_line_errors(sft: str, server: PolicyServer, tmp_path: Path) -> None:
    def run(callback: Any, *others: Any) -> None:
        fit([*others, callback], tmp_path, start(sft), max_steps=1)

    grpo = GroupRelative(LengthReward(1, 9), samples=2)
    server.delay = 0.3
    with pytest.raises(IDCError, match=r"did not respond to 2 requests in a row .*timed out"):
        run(rollouts(server, tmp_path, timeout=0.1), grpo)
    server.delay = 0.0
    with pytest.raises(ConfigError, match="add one of them to the callbacks"):
        run(rollouts(server, tmp_path))
    server.choices = lambda request: {"choices": []}  # type: ignore[method-assign]
    with pytest.raises(IDCError, match="expected choices"):
        run(rollouts(server, tmp_path), grpo)
    without = ServerWeights(str(tmp_path), "http://127.0.0.1:1/load", {"path": "{folder}"})
    with pytest.raises(IDCError, match="no adapters to transfer"):
        run(ServerRollouts(Endpoint("http://127.0.0.1:1/v1", "policy"), without), grpo)
    with pytest.raises(IDCError, match="does not respond"):
        run(ServerRollouts(Endpoint("http://127.0.0.1:1/v1", "policy")), grpo)
    with pytest.raises(ConfigError, match="leave out the cache"):
        ServerRollouts(Endpoint("http://127.0.0.1:1/v1", "policy", cache="answers"))
    with pytest.raises(ConfigError, match=r"put \{folder\} where"):
        ServerWeights("w", "http://x", {"path": "w"})
    with pytest.raises(ConfigError, match="every is 0"):
        ServerWeights("w", "http://x", {"path": "{folder}"}, 0)
