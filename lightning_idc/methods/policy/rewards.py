"""Rewards of captions: facts of rendered pairs, caption metrics, length, and weighted sums.

Shapes: B pairs, K captions per pair. A reward need not be differentiable.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from lightning_idc.data.transforms.sides import swap_sides
from lightning_idc.images.types import PairBatch
from lightning_idc.methods.policy.advantages import EPSILON, batch_std, group_relative
from lightning_idc.nn.vocabulary import words_of
from lightning_idc.utils.bounds import NonNegativeFloat, NonNegativeInt, PositiveInt, check_arguments
from lightning_idc.utils.errors import ConfigError, DataError

if TYPE_CHECKING:
    from lightning_idc.data.datamodule import PairDataModule
    from lightning_idc.metrics.captions import References

Texts = Sequence[Sequence[str]]
"""K captions of each of B pairs."""
Ended = Sequence[Sequence[bool]]
"""Whether each of K captions of B pairs has an end."""
END_WORD = "endofcaption"
"""Word that stands for the end token; the tokenizer of the scores would drop punctuation."""


class Reward(ABC):
    """Base class of rewards (TRL's ``reward_funcs``): a function of B pairs and K captions of each."""

    def __init__(self) -> None:
        self.parts: dict[str, tuple[float, int]] = {}
        """Sum and count of each component of the last rewards, for logging. The names are the same in every step."""

    @property
    def reads_data(self) -> bool:
        """Whether :meth:`setup` must have read the training data before the first reward."""
        return type(self).setup is not Reward.setup

    @property
    def reads_images(self) -> bool:
        """Whether the rewards depend on the images."""
        return True

    def missing(self, data: PairDataModule) -> str | None:
        """What the reward needs and the data do not have, such as scene facts; None if nothing is missing."""
        return None

    def setup(self, data: PairDataModule) -> None:
        """Read the training data; called once, before training.

        Raises:
            ConfigError: something that the reward needs is missing from the data.
        """
        if missing := self.missing(data):
            raise ConfigError(f"{type(self).__name__} needs {missing}, which {type(data).__name__} does not have")

    @abstractmethod
    def __call__(self, pairs: PairBatch, texts: Texts) -> Tensor:
        """Rewards ``(B, K)`` in float32, on the CPU.

        Args:
            pairs: B pairs, with ids, references, meta and images.
            texts: K captions of each pair.
        """

    def of_samples(self, pairs: PairBatch, texts: Texts, ended: Ended) -> Tensor:
        """Rewards ``(B, K)`` of sampled captions, for rewards in which the end of a caption counts.

        Args:
            pairs: as above.
            texts: as above.
            ended: whether the policy ended each caption; False where it reached the maximum length.
        """
        return self(pairs, texts)


def compute_rewards(reward: Reward, pairs: PairBatch, texts: Texts, ended: Ended | None = None) -> Tensor:
    """Compute rewards ``(B, K)`` in float32, and check their shape and values.

    Rewards of another shape would be broadcast over captions of other pairs, and a NaN would spread to all weights.

    Args:
        reward: reward function.
        pairs: B pairs.
        texts: K captions of each pair.
        ended: whether each caption has an end; all have when None.

    Raises:
        DataError: the rewards are not one finite number for each caption.
    """
    ended = [[True] * len(row) for row in texts] if ended is None else ended
    rewards, shape = reward.of_samples(pairs, texts, ended), (len(texts), len(texts[0]))
    name, expected = type(reward).__name__, f"{shape[0]} x {shape[1]} finite numbers, one for each caption"
    if not isinstance(rewards, Tensor):
        raise DataError(f"{name} returned a {type(rewards).__name__}; expected a tensor of {expected}")
    is_finite = bool(rewards.isfinite().all())
    if rewards.shape != shape or not is_finite:
        raise DataError(
            f"{name} returned rewards of shape {tuple(rewards.shape)}, finite: {is_finite}; expected {expected}"
        )
    return rewards.detach().float()


def check_references(pairs: PairBatch, scorer: str) -> None:
    """Check that every pair has a reference.

    Args:
        pairs: B pairs.
        scorer: name of the scorer that needs references, for the message.

    Raises:
        DataError: a pair has no reference.
    """
    missing = [id for id, texts in zip(pairs.ids, pairs.references, strict=True) if not texts]
    if missing:
        raise DataError(
            f"{scorer} compares captions with references, and {len(missing)} of {len(pairs)} pairs, such as "
            f"{missing[0]!r}, have none; leave these pairs out, or use a reward that needs none"
        )


class FactsReward(Reward):
    """Fraction of the facts of a rendered pair that a caption states correctly, by the ground truth of the scene.

    Facts are the type of change; size, colour, material and shape of the changed object; its new value; and its
    relation to another object (``change_accuracy`` of ``data/synthetic/facts.py``). Facts that a pair does not have are
    left out. For a report with several changes (``omnidiff``), the reward is the mean of the recall and the precision
    of change types and of the recall of facts.

    Args:
        weights: weights of ``type``, ``attributes``, ``value`` and ``relation``; 1 for a missing name.
        partial: whether each of the four attributes counts separately; if not, they only count if all are right.

    Raises:
        ConfigError: a name is unknown, or all weights are 0.

    Example:
        >>> FactsReward({"relation": 2.0}).weights["relation"]
        2.0
    """

    def __init__(self, weights: Mapping[str, NonNegativeFloat] | None = None, partial: bool = True) -> None:
        check_arguments(FactsReward.__init__, locals())
        super().__init__()
        self.weights = {"type": 1.0, "attributes": 1.0, "value": 1.0, "relation": 1.0, **(weights or {})}
        if len(self.weights) > 4 or not any(self.weights.values()):
            raise ConfigError(
                f"weights of facts are {dict(weights or {})}; expected type, attributes, value or relation, at least "
                f"one above 0"
            )
        self.partial = partial

    def missing(self, data: PairDataModule) -> str | None:
        return None if "changes" in data.pairs_of("train")[0].meta else "scene facts"

    @property
    def reads_images(self) -> bool:
        return False

    def __call__(self, pairs: PairBatch, texts: Texts) -> Tensor:
        rows = []
        self.parts = dict.fromkeys((f"facts/{name}" for name in self.weights), (0.0, 0))
        for id, meta, row in zip(pairs.ids, pairs.meta or [{}] * len(pairs), texts, strict=True):
            if "changes" not in meta:
                raise DataError(
                    f"pair {id!r} has no facts in its meta, only {sorted(meta)}; FactsReward needs rendered pairs, "
                    "such as those of SyntheticPairs"
                )
            # a mirrored pair keeps the ground truth of the original images
            captions = [swap_sides(text) if meta.get("flipped") else text for text in row]
            row_facts = [self.facts(text, meta) for text in captions]
            rows.append([self._weighted_mean(facts) for facts in row_facts])
            for name, value in (fact for facts in row_facts for fact in facts.items()):
                total, count = self.parts.get(f"facts/{name}", (0.0, 0))
                self.parts[f"facts/{name}"] = total + value, count + 1
        return torch.tensor(rows)

    def _weighted_mean(self, facts: Mapping[str, float]) -> float:
        total = sum(self.weights.get(name, 1.0) for name in facts)
        return sum(self.weights.get(name, 1.0) * value for name, value in facts.items()) / max(total, EPSILON)

    def facts(self, text: str, meta: Mapping[str, Any]) -> dict[str, float]:
        """Correctness of each fact of a caption, 0 to 1; facts that the pair does not have are left out."""
        from lightning_idc.data.synthetic.claims import claim_of
        from lightning_idc.data.synthetic.facts import change_accuracy, report_accuracy
        from lightning_idc.data.synthetic.grammar import parse

        if meta.get("mode") == "omnidiff":
            return report_accuracy(text, meta)
        verdicts = change_accuracy(text, meta)
        facts = {
            name.removesuffix("_correct"): float(verdict) for name, verdict in verdicts.items() if verdict is not None
        }
        if self.partial and "attributes" in facts:
            expected, stated = claim_of(meta["changes"][0]).thing, parse(text).thing
            assert expected is not None
            facts["attributes"] = sum(a == b for a, b in zip(stated or (), expected, strict=False)) / len(expected)
        return facts


class MetricReward(Reward):
    """Score of each caption against the references of its pair, in pycocoevalcap's units (at most 10 for CIDEr-D).

    Args:
        metric: name of a caption metric, such as ``CIDEr-D``, ``BLEU-4`` or ``ROUGE-L``. Document frequencies of
            CIDEr-D and CIDEr come from the training captions.
    """

    def __init__(self, metric: str) -> None:
        super().__init__()
        self.metric = metric
        self.frequencies: References | None = None

    @property
    def reads_data(self) -> bool:
        return self.metric.startswith("CIDEr")

    @property
    def reads_images(self) -> bool:
        return False

    def setup(self, data: PairDataModule) -> None:
        from lightning_idc.metrics.captions import References

        if self.reads_data:
            source = data.pairs_of("train")
            captions = {id: self.training_captions(source.captions(index)) for index, id in enumerate(source.ids)}
            self.frequencies = References({id: texts for id, texts in captions.items() if texts})

    def training_captions(self, captions: Sequence[str]) -> list[str]:
        """Captions of one training pair as the document frequencies count them."""
        return list(captions)

    def __call__(self, pairs: PairBatch, texts: Texts) -> Tensor:
        from lightning_idc.metrics.captions import ScoringResources, score_captions

        check_references(pairs, f"the metric {self.metric}")
        names = [[f"{b}/{k}" for k in range(len(row))] for b, row in enumerate(texts)]
        candidates = {
            name: text
            for row, row_names in zip(texts, names, strict=True)
            for name, text in zip(row_names, row, strict=True)
        }
        references = {
            name: captions for captions, row_names in zip(pairs.references, names, strict=True) for name in row_names
        }
        family = self.metric.split("-")[0] if self.metric.startswith("BLEU") else self.metric
        scores = score_captions(candidates, references, [family], ScoringResources(frequencies=self.frequencies))
        if self.metric not in scores.per_pair:
            reason = scores.missing.get(family, f"expected one of {', '.join(scores.per_pair)}")
            raise ConfigError(f"no reward can be computed with the metric {self.metric!r}: {reason}")
        return torch.tensor(scores.per_pair[self.metric] / 100, dtype=torch.float32).view(len(texts), -1)


class CiderReward(MetricReward):
    """CIDEr-D with document frequencies of the training captions: the reward of self-critical training (SCST).

    Args:
        end_token: whether the end token is a word of captions and references (Rennie et al. 2017, appendix E); without
            it, captions learn to break off, since the last words seldom pay. A caption that reached the maximum length
            has no end token. False computes plain CIDEr-D.
    """

    def __init__(self, end_token: bool = True) -> None:
        check_arguments(CiderReward.__init__, locals())
        super().__init__("CIDEr-D")
        self.end_token = end_token

    def training_captions(self, captions: Sequence[str]) -> list[str]:
        return [f"{text} {END_WORD}" for text in captions] if self.end_token else list(captions)

    def __call__(self, pairs: PairBatch, texts: Texts) -> Tensor:
        return self.of_samples(pairs, texts, [[True] * len(row) for row in texts])

    def of_samples(self, pairs: PairBatch, texts: Texts, ended: Ended) -> Tensor:
        if not self.end_token:
            return super().__call__(pairs, texts)
        references = [self.training_captions(captions) for captions in pairs.references]
        marked = [
            [f"{text} {END_WORD}" if has_end else text for text, has_end in zip(row, ends, strict=True)]
            for row, ends in zip(texts, ended, strict=True)
        ]
        return super().__call__(replace(pairs, references=references), marked)


class LengthReward(Reward):
    """Penalty of long captions: 0 up to ``free`` words, then falling linearly to -1 (DAPO's soft overlong punishment).

    Args:
        free: largest number of words with a reward of 0.
        max_words: smallest number of words with a reward of -1.

    Raises:
        ConfigError: ``max_words`` is not above ``free``.

    Example:
        >>> LengthReward(2, 4).caption_reward("one two three")
        -0.5
    """

    def __init__(self, free: NonNegativeInt, max_words: PositiveInt) -> None:
        check_arguments(LengthReward.__init__, locals())
        super().__init__()
        if not 0 <= free < max_words:
            raise ConfigError(f"free is {free} and max_words is {max_words}; expected 0 <= free < max_words")
        self.free, self.max_words = free, max_words

    @property
    def reads_images(self) -> bool:
        return False

    def caption_reward(self, text: str) -> float:
        """Reward of one caption."""
        return min(0.0, max(-1.0, (self.free - len(words_of(text))) / (self.max_words - self.free)))

    def __call__(self, pairs: PairBatch, texts: Texts) -> Tensor:
        return torch.tensor([[self.caption_reward(text) for text in row] for row in texts])


class WeightedRewards(Reward):
    """Weighted sum of several rewards, which may be normalised first.

    A reward that needs what the data do not have, such as `FactsReward` on photographs, is left out with a message.

    Args:
        rewards: rewards to add.
        weights: weight of each reward (TRL's ``reward_weights``); 1 when None. A reward of weight 0 is not computed.
        normalise: how each reward is normalised. ``group``: minus its mean over a pair's captions, divided by their
            standard deviation (GDPO); ``batch``: divided by the standard deviation over the step; ``none``: not at all.

    Raises:
        ConfigError: the numbers of weights and rewards differ, ``normalise`` is unknown, or no reward is left.
    """

    def __init__(
        self,
        rewards: Sequence[Reward],
        weights: Sequence[float] | None = None,
        normalise: Literal["group", "batch", "none"] = "none",
    ) -> None:
        check_arguments(WeightedRewards.__init__, locals())
        super().__init__()
        self.rewards, self.weights = list(rewards), [1.0] * len(rewards) if weights is None else list(weights)
        if len(self.weights) != len(self.rewards) or not any(self.weights):
            raise ConfigError(
                f"{len(self.rewards)} rewards have the weights {self.weights}; expected one per reward, not all "
                "of them 0"
            )
        self.normalise = normalise

    def missing(self, data: PairDataModule) -> str | None:
        missing = [reward.missing(data) for reward, weight in zip(self.rewards, self.weights, strict=True) if weight]
        return None if None in missing else ", ".join(dict.fromkeys(filter(None, missing)))

    @property
    def reads_data(self) -> bool:
        return any(reward.reads_data for reward in self.rewards)

    @property
    def reads_images(self) -> bool:
        return any(reward.reads_images for reward in self.rewards)

    def setup(self, data: PairDataModule) -> None:
        super().setup(data)
        usable = []
        for reward, weight in zip(self.rewards, self.weights, strict=True):
            if weight and (missing := reward.missing(data)):
                rank_zero_info(f"{type(reward).__name__} is left out: {type(data).__name__} has no {missing}")
            elif weight:
                reward.setup(data)
                usable.append((reward, weight))
        self.rewards, self.weights = [reward for reward, _ in usable], [weight for _, weight in usable]

    def __call__(self, pairs: PairBatch, texts: Texts) -> Tensor:
        return self.of_samples(pairs, texts, [[True] * len(row) for row in texts])

    def of_samples(self, pairs: PairBatch, texts: Texts, ended: Ended) -> Tensor:
        total = torch.zeros(len(texts), len(texts[0]))
        self.parts = {}
        for reward, weight in zip(self.rewards, self.weights, strict=True):
            if not weight:
                continue
            values = compute_rewards(reward, pairs, texts, ended)
            self.parts |= {**reward.parts, f"{type(reward).__name__}/mean": (float(values.sum()), values.numel())}
            if self.normalise == "group":
                values = group_relative(values)
            elif self.normalise == "batch":
                values = values / (batch_std(values) + EPSILON)
            total = total + weight * values
        return total
