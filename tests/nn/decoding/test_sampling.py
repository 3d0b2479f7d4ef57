"""Sampling of captions. Oracle: the probabilities of all captions of a tiny network, enumerated."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from lightning_idc.images.types import PairFeatures
from lightning_idc.nn.decoding.sampling import sample
from lightning_idc.nn.vocabulary import SpecialIds
from lightning_idc.utils.errors import ConfigError

WORDS, END = (4, 5, 6), SpecialIds().eos


@dataclass
class State:
    rows: Tensor

    def select(self, rows: Tensor) -> State:
        return State(self.rows[rows])


class Chain:
    """Markov chain: the next token depends on the previous one and on the pair."""

    def __init__(self) -> None:
        self.table = torch.randn(2, 7, 7, generator=torch.Generator().manual_seed(0))

    def start(self, features: PairFeatures) -> State:
        return State(torch.arange(len(features)))

    def step(self, state: State, tokens: Tensor) -> Tensor:
        return self.table[state.rows, tokens]


def probabilities(net: Chain, pair: int, temperature: float, top_p: float) -> dict[tuple[int, ...], float]:
    """Probabilities of all captions of at most two tokens, enumerated."""

    def next_probabilities(token: int) -> dict[int, float]:
        log_probs = net.table[pair, token].double().log_softmax(-1)
        weights = {t: float((log_probs[t] / temperature).exp()) for t in (END, *WORDS)}
        total, mass, nucleus = sum(weights.values()), 0.0, {}
        for t in sorted(weights, key=lambda t: -weights[t]):
            if mass < top_p:
                nucleus[t] = weights[t] / total
            mass += weights[t] / total
        return {t: weight / sum(nucleus.values()) for t, weight in nucleus.items()}

    captions: dict[tuple[int, ...], float] = {}
    for first, probability in next_probabilities(SpecialIds().bos).items():
        if first == END:
            captions[(END,)] = probability
        else:
            captions |= {(first, second): probability * p for second, p in next_probabilities(first).items()}
    return captions


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.6, 1.0), (1.0, 0.7)])
def test_samples_follow_distribution_of_network(temperature: float, top_p: float) -> None:
    net, count = Chain(), 4000
    generator = torch.Generator().manual_seed(3)
    features = PairFeatures(torch.zeros(2, 1, 1))
    samples = sample(net, features, 2, count, temperature=temperature, top_p=top_p, generator=generator)
    assert len(samples.ids) == 2 * count
    for pair in range(2):
        counts = Counter(map(tuple, samples.ids[pair * count : (pair + 1) * count]))
        expected = probabilities(net, pair, temperature, top_p)
        assert set(counts) <= set(expected)
        for caption, p in expected.items():
            # 4.5 standard deviations of a binomial
            assert abs(counts[caption] / count - p) <= 4.5 * (p * (1 - p) / count) ** 0.5 + 1e-9, caption
    # log-probabilities do not depend on the temperature
    ids = samples.ids[0]
    steps = zip([SpecialIds().bos, *ids], ids, strict=False)
    log_probs = [float(net.table[0, previous].log_softmax(-1)[token]) for previous, token in steps]
    assert samples.mean_log_probs[0] == pytest.approx(sum(log_probs) / len(log_probs), abs=1e-5)


def test_sampling_is_seeded_and_rejects_invalid_options() -> None:
    features = PairFeatures(torch.zeros(2, 1, 1))
    samples = [sample(Chain(), features, 3, 5, generator=torch.Generator().manual_seed(1)).ids for _ in range(2)]
    assert samples[0] == samples[1]
    greedy_samples = sample(Chain(), features, 3, 5, temperature=1e-4)
    assert all(ids == greedy_samples.ids[0] for ids in greedy_samples.ids[:5])
    for name, value in (("temperature", 0.0), ("top_p", 0.0), ("samples", 0)):
        with pytest.raises(ConfigError, match=f"{name} is {value}"):
            sample(Chain(), features, 3, **{"samples": 2, name: value})  # type: ignore[arg-type]
