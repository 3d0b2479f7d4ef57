"""Rewards of captions. Oracles: ground truth of rendered scenes, the library's metrics, and a local judge server."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tiny import TinyPairs

from lightning_idc.data.synthetic import SyntheticPairs
from lightning_idc.data.synthetic.counterfactual import counterfactuals, true_sentence
from lightning_idc.data.transforms.pairs import Flip
from lightning_idc.images.types import PairBatch, PairSample
from lightning_idc.methods.policy.judge_reward import JudgeReward
from lightning_idc.methods.policy.rewards import (
    CiderReward,
    FactsReward,
    LengthReward,
    MetricReward,
    Reward,
    Texts,
    WeightedRewards,
    compute_rewards,
)
from lightning_idc.metrics.captions import References, ScoringResources, score_captions
from lightning_idc.synthesis.models import endpoint as module
from lightning_idc.synthesis.models.endpoint import Endpoint
from lightning_idc.utils.errors import ConfigError, DataError


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> SyntheticPairs:
    cache = tmp_path_factory.mktemp("cache")
    return SyntheticPairs(train_pairs=24, val_pairs=1, test_pairs=1, render_size=32, cache_dir=cache, progress=False)


def batch_of(samples: list[PairSample]) -> PairBatch:
    blank = torch.zeros(len(samples), 1, 2, dtype=torch.long)
    return PairBatch(
        images=torch.stack([torch.stack([sample.before, sample.after]) for sample in samples]),
        tokens=blank,
        caption_mask=blank.bool(),
        ids=[sample.id for sample in samples],
        references=[sample.captions for sample in samples],
        change_types=[sample.change_type for sample in samples],
        meta=[sample.meta for sample in samples],
    )


@pytest.fixture(scope="module")
def batch(data: SyntheticPairs) -> PairBatch:
    source = data.pairs_of("train")
    return batch_of([source.load(index) for index in range(len(source))])


# ---- facts -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_facts_reward_of_true_and_false_sentences(batch: PairBatch) -> None:
    reward, generator = FactsReward(), torch.Generator().manual_seed(0)
    texts = [
        [true_sentence(truth, 0), counterfactuals(truth, 1, generator)[0], batch.references[b][0], "qqq"]
        for b, truth in enumerate(batch.meta)
    ]
    actual = reward(batch, texts)
    assert actual.shape == (24, 4) and actual.dtype == torch.float32
    assert bool((actual[:, 0] == 1).all()) and bool((actual[:, 2] == 1).all())
    assert bool((actual[:, 1] < 1).all()) and bool((actual[:, 3] == 0).all())
    # a changed pair with one wrong fact still has some correct facts
    changed = torch.tensor([bool(truth["changes"]) for truth in batch.meta])
    assert 0.3 < float(actual[changed, 1].mean()) < 0.95
    total, count = reward.parts["facts/type"]
    assert count == 96 and 0.4 < total / count < 0.9


def test_facts_reward_weights(batch: PairBatch) -> None:
    index = next(b for b, kind in enumerate(batch.change_types) if kind == "color")
    truth, references = batch.meta[index], batch.references[index]
    claim = truth["changes"][0]
    thing = claim["thing"]
    right = f"the {thing['size']} {thing['color']} {thing['material']} {thing['shape']} changed to {claim['value']}"
    other = "cube" if thing["shape"] != "cube" else "sphere"
    wrong = right.replace(thing["shape"], other)
    related = claim["relation"] is not None
    facts = FactsReward().facts(wrong, truth)
    assert facts == {"type": 1.0, "attributes": 0.75, "value": 1.0, **({"relation": 0.0} if related else {})}
    assert FactsReward(partial=False).facts(wrong, truth)["attributes"] == 0.0
    one = batch_of([PairSample("p", torch.zeros(3, 4, 4).byte(), torch.zeros(3, 4, 4).byte(), references, meta=truth)])
    only = FactsReward({"type": 0.0, "value": 0.0, "relation": 0.0, "attributes": 2.0})
    assert float(only(one, [[wrong]])) == 0.75
    with pytest.raises(ConfigError, match="expected type, attributes, value or relation"):
        FactsReward({"colour": 1.0})
    # with all weights 0, all captions would get the same reward
    for value, message in ((0.0, "one above 0"), (math.nan, "weights.type is nan; expected at least 0")):
        with pytest.raises(ConfigError, match=message):
            FactsReward(dict.fromkeys(("type", "attributes", "value", "relation"), value))


def test_facts_reward_of_mirrored_pairs(data: SyntheticPairs) -> None:
    source = data.pairs_of("train")
    samples = [source.load(index) for index in range(24)]
    sided = [s for s in samples if any(word in s.captions[0] for word in ("left", "right"))]
    assert sided
    flip, generator = Flip(1.0), torch.Generator()
    mirrored = batch_of([flip(sample, generator) for sample in sided])
    texts = [
        [references_of_pair[0], sample.captions[0]]
        for references_of_pair, sample in zip(mirrored.references, sided, strict=True)
    ]
    actual = FactsReward()(mirrored, texts)
    assert bool((actual[:, 0] == 1).all()) and bool((actual[:, 1] < 1).all())


def test_rejects_pairs_without_facts_or_references(batch: PairBatch, data: SyntheticPairs) -> None:
    sample = PairSample("photo", torch.zeros(3, 4, 4).byte(), torch.zeros(3, 4, 4).byte())
    with pytest.raises(DataError, match="pair 'photo' has no facts in its meta"):
        FactsReward()(batch_of([sample]), [["a"]])
    reward = CiderReward()
    reward.setup(data)
    with pytest.raises(DataError, match="1 of 1 pairs, such as 'photo', have none"):
        reward(batch_of([sample]), [["a"]])
    with pytest.raises(DataError, match="the judge compares captions with references"):
        JudgeReward(Endpoint("http://127.0.0.1:9/v1", "tiny"))(batch_of([sample]), [["a"]])


# ---- metrics, lengths and sums -----------------------------------------------------------------------------


def test_breaking_off_costs_more_with_the_end_token(batch: PairBatch, data: SyntheticPairs) -> None:
    """Rennie et al. 2017, appendix E: if the end token is not a word, cutting the last word often pays off."""
    whole = [[captions[0]] for captions in batch.references]
    cut = [[captions[0].rsplit(" ", 1)[0]] for captions in batch.references]
    margins = {}
    for end_token in (False, True):
        reward = CiderReward(end_token=end_token)
        reward.setup(data)
        broken_off = compute_rewards(reward, batch, cut, [[False]] * len(batch))
        margins[end_token] = compute_rewards(reward, batch, whole) - broken_off
        # the same words, once with an end token and once cut at the maximum length
        truncated = compute_rewards(reward, batch, whole, [[False]] * len(batch))
        assert bool((truncated != compute_rewards(reward, batch, whole)).all()) is end_token
        summed = compute_rewards(WeightedRewards([reward], [2.0]), batch, cut, [[False]] * len(batch))
        torch.testing.assert_close(summed, 2 * broken_off)
    assert bool((margins[True] > margins[False]).all())


def test_cider_reward_uses_training_document_frequencies(batch: PairBatch, data: SyntheticPairs) -> None:
    reward = CiderReward(end_token=False)
    reward.setup(data)
    source = data.pairs_of("train")
    texts = [
        [references_of_pair[1], batch.references[(b + 1) % 24][0]]
        for b, references_of_pair in enumerate(batch.references)
    ]
    actual = reward(batch, texts)
    frequencies = References({id: source.captions(index) for index, id in enumerate(source.ids)})
    for k in range(2):
        generated = {id: row[k] for id, row in zip(batch.ids, texts, strict=True)}
        references = dict(zip(batch.ids, batch.references, strict=True))
        scores = score_captions(generated, references, ["CIDEr-D"], ScoringResources(frequencies=frequencies))
        expected = torch.tensor([scores.of_pair(id)["CIDEr-D"] / 100 for id in batch.ids])
        torch.testing.assert_close(actual[:, k], expected.float())
    assert float(actual[:, 0].mean()) > float(actual[:, 1].mean()) + 1
    bleu = MetricReward("BLEU-4")(batch, [[references_of_pair[0], "qqq"] for references_of_pair in batch.references])
    torch.testing.assert_close(bleu, torch.tensor([1.0, 0.0]).expand(24, 2), rtol=0, atol=1e-3)
    with pytest.raises(ConfigError, match="no reward can be computed with the metric 'BLEU-9'"):
        MetricReward("BLEU-9")(batch, [["a"]] * 24)


def test_length_and_weighted_rewards(batch: PairBatch) -> None:
    length = LengthReward(2, 4)
    texts = [["one two", "one two three", "one two three four five"]] * 24
    assert length(batch, texts)[0].tolist() == [0.0, -0.5, -1.0]
    facts = FactsReward()
    both = WeightedRewards([facts, length], [2.0, 0.5])
    torch.testing.assert_close(both(batch, texts), 2 * facts(batch, texts) + 0.5 * length(batch, texts))
    assert {"FactsReward/mean", "LengthReward/mean", "facts/type"} <= set(both.parts)
    assert both.parts["LengthReward/mean"] == (-36.0, 72)
    values = torch.tensor([0.0, -0.5, -1.0])
    alone = WeightedRewards([length], normalise="group")(batch, texts)
    torch.testing.assert_close(alone[0], (values + 0.5) / (0.5 + 1e-4))
    alone = WeightedRewards([length], normalise="batch")(batch, texts)
    deviation = math.sqrt(24 * 0.5 / 71)
    torch.testing.assert_close(alone[0], values / (deviation + 1e-4))
    # a reward of weight 0 is not computed: it would raise for these pairs
    zero_weight = WeightedRewards([length, facts], [1.0, 0.0])
    assert zero_weight(batch_of([PairSample("p", *torch.zeros(2, 3, 4, 4).byte())]), [["a"]]).tolist() == [[0.0]]
    with pytest.raises(ConfigError, match="2 rewards have the weights"):
        WeightedRewards([length, facts], [1.0])
    with pytest.raises(ConfigError, match="free is 3"):
        LengthReward(3, 3)


def test_rewards_without_facts_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    length, facts = LengthReward(2, 4), FactsReward()
    rewards = WeightedRewards([facts, length], [2.0, 0.5])
    with caplog.at_level("INFO", logger="lightning.pytorch.utilities.rank_zero"):
        rewards.setup(TinyPairs())
    assert caplog.messages == ["FactsReward is left out: TinyPairs has no scene facts"]
    assert (rewards.rewards, rewards.weights) == ([length], [0.5])
    for reward in (facts, WeightedRewards([facts])):
        with pytest.raises(ConfigError, match="needs scene facts, which TinyPairs does not have"):
            reward.setup(TinyPairs())


class FixedReward(Reward):
    """Returns a fixed value."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def __call__(self, pairs: PairBatch, texts: Texts) -> torch.Tensor:
        rewards: torch.Tensor = self.value
        return rewards


@pytest.mark.parametrize(
    ("value", "match"),
    [
        # shapes that would be broadcast over captions or pairs
        (torch.zeros(2), r"FixedReward returned rewards of shape \(2,\), finite: True; expected 2 x 2 finite numbers"),
        (torch.zeros(2, 1), r"shape \(2, 1\)"),
        (torch.zeros(1, 2), r"shape \(1, 2\)"),
        (torch.tensor([[0.0, 1.0], [math.nan, 0.0]]), r"FixedReward returned rewards of shape \(2, 2\), finite: False"),
        ([[0.0, 1.0], [1.0, 0.0]], "FixedReward returned a list; expected a tensor of 2 x 2 finite numbers"),
        (None, "FixedReward returned a NoneType; expected a tensor"),
    ],
)
def test_rejects_rewards_of_the_wrong_shape(value: Any, match: str) -> None:
    two_pairs, texts = batch_of([PairSample("p", *torch.zeros(2, 3, 4, 4).byte())] * 2), [["a", "b"], ["c", "d"]]
    with pytest.raises(DataError, match=match):
        WeightedRewards([LengthReward(1, 2), FixedReward(value)])(two_pairs, texts)
    assert WeightedRewards([FixedReward(torch.ones(2, 2, dtype=torch.long))])(two_pairs, texts).dtype == torch.float32


# ---- a judge -----------------------------------------------------------------------------------------------


class Judge:
    """A judge server: answers with the number at the end of the caption, or with queued failures and answers."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.fail: list[int] = []
        self.delay = 0.0
        self.unclear: list[str] = []
        judge = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *arguments: Any) -> None:
                pass

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                judge.requests.append(request)
                status = judge.fail.pop(0) if judge.fail else 200
                time.sleep(judge.delay)
                content = request["messages"][0]["content"]
                text = content if isinstance(content, str) else content[-1]["text"]
                answer = judge.unclear.pop(0) if judge.unclear else f"Score: {text.rsplit(maxsplit=1)[-1]}"
                data = json.dumps({"choices": [{"message": {"content": answer}}]}).encode()
                try:
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                except OSError:
                    pass  # the client has timed out

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/v1"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def endpoint(self, **options: Any) -> Endpoint:
        return Endpoint(self.url, "tiny", **{"concurrency": 1, "retries": 2, **options})


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Iterator[Judge]:
    monkeypatch.setattr(module.time, "sleep", lambda seconds, sleep=time.sleep: sleep(min(seconds, 0.3)))
    server = Judge()
    yield server
    server.http.shutdown()
    server.http.server_close()


@pytest.fixture
def two_pairs(batch: PairBatch) -> PairBatch:
    samples = [
        PairSample(id, *images, captions, meta=meta)
        for id, images, captions, meta in zip(batch.ids, batch.images, batch.references, batch.meta, strict=True)
    ]
    return batch_of(samples[:2])


def test_judge_reward_is_a_fraction_of_the_highest_score(judge: Judge, two_pairs: PairBatch) -> None:
    texts = [["x 0", "x 3"], ["x 1.5", "x 3"]]
    assert JudgeReward(judge.endpoint())(two_pairs, texts).tolist() == [[0.0, 1.0], [0.5, 1.0]]
    prompt = judge.requests[0]["messages"][0]["content"]
    assert " ".join(two_pairs.references[0]) in prompt and "x 0" in prompt
    custom = JudgeReward(judge.endpoint(), prompt="Rate from 0 to 10: {caption}", max_score=10.0, images=True)
    assert custom(two_pairs, texts).tolist() == [
        [0.0, pytest.approx(0.3)],
        [pytest.approx(0.15), pytest.approx(0.3)],
    ]
    parts = judge.requests[-1]["messages"][0]["content"]
    assert [part["type"] for part in parts] == ["image_url", "image_url", "text"]
    with pytest.raises(ConfigError, match=r"there is no rubric 'best'"):
        JudgeReward(judge.endpoint(), rubric="best")
    for arguments, message in ((dict(tries=0), "tries is 0"), (dict(max_score=0.0), "max_score is 0")):
        with pytest.raises(ConfigError, match=message):
            JudgeReward(judge.endpoint(), **arguments)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"has no \{caption\}"):
        JudgeReward(judge.endpoint(), prompt="Rate it")


@pytest.mark.slow
def test_judge_reward_retries_and_then_raises(judge: Judge, two_pairs: PairBatch) -> None:
    judge.fail = [503, 429]
    assert JudgeReward(judge.endpoint())(two_pairs, [["x 3"], ["x 3"]]).tolist() == [[1.0], [1.0]]
    assert len(judge.requests) == 4
    judge.fail = [503] * 3
    with pytest.raises(ConfigError, match="did not respond to 3 requests in a row"):
        JudgeReward(judge.endpoint())(two_pairs, [["x 3"], ["x 3"]])
    judge.fail, judge.delay = [], 0.3
    with pytest.raises(ConfigError, match=r"did not respond to 2 requests in a row.*timed out"):
        JudgeReward(judge.endpoint(timeout=0.05, retries=1))(two_pairs, [["x 3"], ["x 3"]])


def test_unreadable_answers_are_neutral(judge: Judge, two_pairs: PairBatch) -> None:
    judge.unclear = ["I like it"]
    reward = JudgeReward(judge.endpoint())
    assert reward(two_pairs, [["x 3"], ["x 0"]]).tolist() == [[1.0], [0.0]]
    seeds = [request["seed"] for request in judge.requests]
    assert seeds == [0, 0, 1], "the second try has another seed"
    judge.unclear = ["well"]
    lenient = JudgeReward(judge.endpoint(), tries=1)
    assert lenient(two_pairs, [["x 9", "x 3", "x 1.5"], ["x 0", "x 0", "x 0"]])[0].tolist() == [0.75, 1.0, 0.5]
    assert lenient.parts["JudgeReward/unreadable"] == (1.0, 6)
    judge.unclear = ["no"] * 4
    with pytest.raises(DataError, match="2 of 2 answers of the judge 'tiny' hold no score from 0 to 3"):
        reward(two_pairs, [["x 3"], ["x 3"]])


def test_judge_answers_are_cached_on_disk(judge: Judge, two_pairs: PairBatch, tmp_path: Path) -> None:
    reward = JudgeReward(judge.endpoint(cache=str(tmp_path)))
    first = reward(two_pairs, [["x 3"], ["x 0"]])
    assert torch.equal(reward(two_pairs, [["x 3"], ["x 0"]]), first) and len(judge.requests) == 2
