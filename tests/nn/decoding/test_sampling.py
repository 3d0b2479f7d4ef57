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
    """The next token depends on the last one and on the pair."""

    def __init__(self) -> None:
        self.table = torch.randn(2, 7, 7, generator=torch.Generator().manual_seed(0))

    def start(self, features: PairFeatures) -> State:
        return State(torch.arange(len(features)))

    def step(self, state: State, tokens: Tensor) -> Tensor:
        return self.table[state.rows, tokens]


def probabilities(net: Chain, pair: int, temperature: float, top_p: float) -> dict[tuple[int, ...], float]:
    """Of all captions of at most two tokens: those that may be drawn, by hand."""

    def following(token: int) -> dict[int, float]:
        logits = net.table[pair, token].double().log_softmax(-1)
        weights = {t: float((logits[t] / temperature).exp()) for t in (END, *WORDS)}
        total, reached, kept = sum(weights.values()), 0.0, {}
        for t in sorted(weights, key=lambda t: -weights[t]):
            if reached < top_p:
                kept[t] = weights[t] / total
            reached += weights[t] / total
        return {t: weight / sum(kept.values()) for t, weight in kept.items()}

    found: dict[tuple[int, ...], float] = {}
    for first, chance in following(SpecialIds().bos).items():
        if first == END:
            found[(END,)] = chance
        else:
            found |= {(first, second): chance * other for second, other in following(first).items()}
    return found


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.6, 1.0), (1.0, 0.7)])
def test_samples_have_the_distribution_of_the_network(temperature: float, top_p: float) -> None:
    net, count = Chain(), 4000
    generator = torch.Generator().manual_seed(3)
    found = sample(net, PairFeatures(torch.zeros(2, 1, 1)), 2, count, temperature, top_p, generator)
    assert len(found.ids) == 2 * count
    for pair in range(2):
        said = Counter(map(tuple, found.ids[pair * count : (pair + 1) * count]))
        expected = probabilities(net, pair, temperature, top_p)
        assert set(said) <= set(expected)
        for caption, chance in expected.items():
            # 4.5 standard deviations of a binomial
            assert abs(said[caption] / count - chance) <= 4.5 * (chance * (1 - chance) / count) ** 0.5 + 1e-9, caption
    # log-probabilities are the network's own, whatever the temperature
    ids = found.ids[0]
    steps = zip([SpecialIds().bos, *ids], ids, strict=False)
    own = [float(net.table[0, last].log_softmax(-1)[token]) for last, token in steps]
    assert found.mean_log_probs[0] == pytest.approx(sum(own) / len(own), abs=1e-5)


def test_the_same_generator_gives_the_same_samples_and_bad_settings_are_refused() -> None:
    features = PairFeatures(torch.zeros(2, 1, 1))
    drawn = [sample(Chain(), features, 3, 5, generator=torch.Generator().manual_seed(1)).ids for _ in range(2)]
    assert drawn[0] == drawn[1]
    cold = sample(Chain(), features, 3, 5, temperature=1e-4)
    assert all(row == cold.ids[0] for row in cold.ids[:5])
    for name, value in (("temperature", 0.0), ("top_p", 0.0), ("samples", 0)):
        with pytest.raises(ConfigError, match=f"{name} is {value}"):
            sample(Chain(), features, 3, **{"samples": 2, name: value})  # type: ignore[arg-type]
