"""Rewards: how good each of K captions of a pair is, judged by anything, differentiable or not."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from lightning_idc.data.transforms.sides import swap_sides
from lightning_idc.images.types import PairBatch
from lightning_idc.methods.policy.advantages import EPSILON, group_relative, spread
from lightning_idc.nn.vocabulary import words_of
from lightning_idc.utils.errors import ConfigError, DataError, check_choice

if TYPE_CHECKING:
    from lightning_idc.data.datamodule import PairDataModule
    from lightning_idc.metrics.captions import References

Texts = Sequence[Sequence[str]]
"""K captions of each of B pairs."""


class Reward(ABC):
    """Judges K captions of each of B pairs."""

    def __init__(self) -> None:
        self.parts: dict[str, tuple[float, int]] = {}
        """Sum and number of the values of each part of the last rewards, for logging; the same names in every step."""

    def connect(self, data: PairDataModule) -> None:  # noqa: B027 - not every reward reads the data
        """Read what it needs of the training data; called once, before training."""

    @abstractmethod
    def __call__(self, pairs: PairBatch, texts: Texts) -> Tensor:
        """Rewards ``(B, K)`` in float32, on the processor.

        Args:
            pairs: B pairs, with ids, references, meta and images.
            texts: K captions of each.
        """


def rewards_of(reward: Reward, pairs: PairBatch, texts: Texts) -> Tensor:
    """Rewards ``(B, K)`` in float32 of a reward of anybody's.

    Other shapes would be spread over the captions of other pairs, and a number that is none goes everywhere.

    Args:
        reward: judges.
        pairs: B pairs.
        texts: K captions of each.

    Raises:
        DataError: it gave something else than one finite number for each caption.
    """
    found, expected = reward(pairs, texts), (len(texts), len(texts[0]))
    name, numbers = type(reward).__name__, f"{expected[0]} x {expected[1]} finite numbers"
    if not isinstance(found, Tensor):
        raise DataError(f"{name} gave a {type(found).__name__}; expected a tensor of {numbers}, one for each caption")
    finite = bool(found.isfinite().all())
    if found.shape != expected or not finite:
        raise DataError(
            f"{name} gave rewards of shape {tuple(found.shape)}, finite: {finite}; expected {numbers}, one for each "
            "caption"
        )
    return found.detach().float()


def refuse_without_references(pairs: PairBatch, who: str) -> None:
    """Refuse pairs that have no caption to compare with.

    Raises:
        DataError: a pair has no reference.
    """
    missing = [id for id, texts in zip(pairs.ids, pairs.references, strict=True) if not texts]
    if missing:
        raise DataError(
            f"{who} compares captions with references, and {len(missing)} of {len(pairs)} pairs, such as "
            f"{missing[0]!r}, have none; leave these pairs out, or use a reward that needs none"
        )


class FactsReward(Reward):
    """Share of the facts of a rendered pair that a caption gets right, judged by the scene itself.

    Facts are the type of change, size, colour, material and shape of what changed, its new value, and its relation to
    another thing; those that do not arise in a pair do not count. See ``data/synthetic/facts.py: change_accuracy``. Of
    a report with several changes (``omnidiff``) it is the mean of recall and precision of types and recall of facts.

    Args:
        weights: factor of ``type``, ``attributes``, ``value`` and ``relation``; 1 where a name is missing.
        partial: count each of the four attributes; else they are right only together.

    Raises:
        ConfigError: a fact has another name, or none counts.

    Example:
        >>> FactsReward({"relation": 2.0}).weights["relation"]
        2.0
    """

    def __init__(self, weights: Mapping[str, float] | None = None, partial: bool = True) -> None:
        super().__init__()
        self.weights = {"type": 1.0, "attributes": 1.0, "value": 1.0, "relation": 1.0, **(weights or {})}
        given = self.weights.values()
        if len(given) > 4 or not all(weight >= 0 for weight in given) or not any(given):
            raise ConfigError(
                f"weights of facts are {dict(weights or {})}; expected type, attributes, value or relation, 0 or more, "
                "and one above 0"
            )
        self.partial = partial

    def __call__(self, pairs: PairBatch, texts: Texts) -> Tensor:
        rows = []
        self.parts = dict.fromkeys((f"facts/{name}" for name in self.weights), (0.0, 0))
        for id, truth, row in zip(pairs.ids, pairs.meta or [{}] * len(pairs), texts, strict=True):
            if "changes" not in truth:
                raise DataError(
                    f"pair {id!r} has no facts in its meta (it has {sorted(truth)}); FactsReward judges rendered "
                    "pairs, such as those of SyntheticPairs"
                )
            # a mirrored pair keeps the truth of the picture before
            judged = [swap_sides(text) if truth.get("flipped") else text for text in row]
            found = [self.facts(text, truth) for text in judged]
            rows.append([self._share(facts) for facts in found])
            for name, value in (fact for facts in found for fact in facts.items()):
                total, count = self.parts.get(f"facts/{name}", (0.0, 0))
                self.parts[f"facts/{name}"] = total + value, count + 1
        return torch.tensor(rows)

    def _share(self, facts: Mapping[str, float]) -> float:
        total = sum(self.weights.get(name, 1.0) for name in facts)
        return sum(self.weights.get(name, 1.0) * value for name, value in facts.items()) / max(total, EPSILON)

    def facts(self, text: str, truth: Mapping[str, Any]) -> dict[str, float]:
        """How right each fact of a caption is, from 0 to 1; facts that do not arise are left out."""
        from lightning_idc.data.synthetic.claims import claim_of
        from lightning_idc.data.synthetic.facts import change_accuracy, report_accuracy
        from lightning_idc.data.synthetic.grammar import parse

        if truth.get("mode") == "omnidiff":
            return report_accuracy(text, truth)
        verdicts = change_accuracy(text, truth)
        found = {
            name.removesuffix("_correct"): float(verdict) for name, verdict in verdicts.items() if verdict is not None
        }
        if self.partial and "attributes" in found:
            right, said = claim_of(truth["changes"][0]).thing, parse(text).thing
            assert right is not None
            found["attributes"] = sum(a == b for a, b in zip(said or (), right, strict=False)) / len(right)
        return found


class MetricReward(Reward):
    """Score of each caption against the references of its pair, in pycocoevalcap's units (CIDEr-D ends at 10).

    Args:
        metric: of the library's captions' metrics, such as ``CIDEr-D``, ``BLEU-4`` or ``ROUGE-L``. How rare words are
            to CIDEr-D and CIDEr is counted in the training captions.
    """

    def __init__(self, metric: str) -> None:
        super().__init__()
        self.metric = metric
        self.frequencies: References | None = None

    def connect(self, data: PairDataModule) -> None:
        from lightning_idc.metrics.captions import References

        if self.metric.startswith("CIDEr"):
            source = data.pairs_of("train")
            known = {id: list(source.captions(index)) for index, id in enumerate(source.ids)}
            self.frequencies = References({id: texts for id, texts in known.items() if texts})

    def __call__(self, pairs: PairBatch, texts: Texts) -> Tensor:
        from lightning_idc.metrics.captions import ScoringResources, score_captions

        refuse_without_references(pairs, f"the metric {self.metric}")
        names = [[f"{b}/{k}" for k in range(len(row))] for b, row in enumerate(texts)]
        said = {
            name: text for row, named in zip(texts, names, strict=True) for name, text in zip(named, row, strict=True)
        }
        known = {name: own for own, named in zip(pairs.references, names, strict=True) for name in named}
        family = self.metric.split("-")[0] if self.metric.startswith("BLEU") else self.metric
        scores = score_captions(said, known, [family], ScoringResources(frequencies=self.frequencies))
        if self.metric not in scores.per_pair:
            reason = scores.missing.get(family, f"it has {', '.join(scores.per_pair)}")
            raise ConfigError(f"no reward can be made of the metric {self.metric!r}: {reason}")
        return torch.tensor(scores.per_pair[self.metric] / 100, dtype=torch.float32).view(len(texts), -1)


class CiderReward(MetricReward):
    """CIDEr-D, with n-grams weighed by the training captions: the reward of self-critical training (SCST)."""

    def __init__(self) -> None:
        super().__init__("CIDEr-D")


class LengthReward(Reward):
    """0 up to a number of words, then falling to -1: DAPO's soft punishment of what is too long.

    Args:
        free: words that cost nothing.
        max_words: words from which on the reward is -1.

    Raises:
        ConfigError: ``max_words`` is not above ``free``.

    Example:
        >>> LengthReward(2, 4).of("one two three")
        -0.5
    """

    def __init__(self, free: int, max_words: int) -> None:
        super().__init__()
        if not 0 <= free < max_words:
            raise ConfigError(f"free is {free} and max_words is {max_words}; expected 0 <= free < max_words")
        self.free, self.max_words = free, max_words

    def of(self, text: str) -> float:
        """Reward of one caption."""
        return -min(1.0, max(0.0, (len(words_of(text)) - self.free) / (self.max_words - self.free)))

    def __call__(self, pairs: PairBatch, texts: Texts) -> Tensor:
        return torch.tensor([[self.of(text) for text in row] for row in texts])


class WeightedRewards(Reward):
    """Sum of several rewards, each brought to one scale first where that is wanted.

    Args:
        rewards: to add.
        weights: one factor each; 1 when None. A reward of weight 0 is not asked.
        normalise: ``group``: each minus its mean over a pair's captions and over their standard deviation (GDPO);
            ``batch``: over the standard deviation of the step; ``none``: as it is.

    Raises:
        ConfigError: there are not as many weights as rewards, or ``normalise`` is unknown.
    """

    def __init__(
        self,
        rewards: Sequence[Reward],
        weights: Sequence[float] | None = None,
        normalise: Literal["group", "batch", "none"] = "none",
    ) -> None:
        super().__init__()
        check_choice("normalise", normalise, ("group", "batch", "none"))
        self.rewards, self.weights = list(rewards), [1.0] * len(rewards) if weights is None else list(weights)
        if len(self.weights) != len(self.rewards) or not any(self.weights):
            raise ConfigError(
                f"{len(self.rewards)} rewards have the weights {self.weights}; give each reward one, and one above 0"
            )
        self.normalise = normalise

    def connect(self, data: PairDataModule) -> None:
        for reward in self.rewards:
            reward.connect(data)

    def __call__(self, pairs: PairBatch, texts: Texts) -> Tensor:
        total = torch.zeros(len(texts), len(texts[0]))
        self.parts = {}
        for reward, weight in zip(self.rewards, self.weights, strict=True):
            if not weight:
                continue
            values = rewards_of(reward, pairs, texts)
            self.parts |= {**reward.parts, f"{type(reward).__name__}/mean": (float(values.sum()), values.numel())}
            if self.normalise == "group":
                values = group_relative(values)
            elif self.normalise == "batch":
                values = values / (spread(values) + EPSILON)
            total = total + weight * values
        return total
