"""RewardMined: the policy's own worst captions as the rejected ones of preference optimisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lightning_idc.methods.adpo.negatives import Draw, NegativeSource, RandomCaption
from lightning_idc.methods.adpo.pool import same_words
from lightning_idc.methods.policy.rewards import Reward, rewards_of
from lightning_idc.methods.policy.rollout import grouped
from lightning_idc.models.addon import TrainingStep
from lightning_idc.nn.decoding.sampling import check_sampling

if TYPE_CHECKING:
    from lightning_idc.data.datamodule import PairDataModule


class RewardMined(NegativeSource):
    """What the policy itself says at random and a reward finds worst, for :class:`PreferenceOptimization`.

    Beside an `AdversarialRetriever` its ``share`` says how many negatives come from where. A sample that is a
    reference, or as good as ``best``, is replaced by a caption of another pair.

    Args:
        reward: judges the samples.
        samples: drawn per pair, of which the worst are taken.
        best: samples with this reward or more are not negatives; None for any.
        temperature: of the sampling.
        top_p: of the sampling.

    Raises:
        ConfigError: no caption is drawn, or temperature or ``top_p`` is out of range.
    """

    def __init__(
        self,
        reward: Reward,
        samples: int = 8,
        best: float | None = 1.0,
        temperature: float = 1.0,
        top_p: float = 1.0,
    ) -> None:
        check_sampling(temperature, top_p, samples)
        self.reward, self.samples, self.best = reward, samples, best
        self.temperature, self.top_p = temperature, top_p
        self.elsewhere = RandomCaption()

    def connect(self, data: PairDataModule) -> None:
        self.reward.connect(data)
        self.elsewhere.connect(data)

    def draw(self, step: TrainingStep, count: int, generator: torch.Generator) -> Draw:
        host: Any = step.host
        found = self.elsewhere.draw(step, count, generator)
        wanted = max(self.samples, count)
        said = host.generate(
            step.features, samples=wanted, temperature=self.temperature, top_p=self.top_p, generator=generator
        )
        texts = grouped([caption.text for caption in said], wanted)
        rewards = rewards_of(self.reward, step.batch, texts).tolist()
        for row, own, samples, values in zip(found.texts, step.batch.references, texts, rewards, strict=True):
            right = {same_words(caption) for caption in own}
            # each sentence once, the worst first
            worst = sorted(
                {same_words(text): (value, text) for value, text in zip(values, samples, strict=True)}.values()
            )
            wrong = [
                text
                for value, text in worst
                if text.strip() and same_words(text) not in right and (self.best is None or value < self.best)
            ]
            row[: len(wrong)] = wrong[:count]
        return found
