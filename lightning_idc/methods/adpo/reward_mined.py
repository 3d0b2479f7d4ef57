"""RewardMined: samples of the policy with the lowest rewards as rejected captions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from lightning_idc.methods.adpo.negatives import NegativeSource, RandomCaption, RejectedCaptions, log_too_similar
from lightning_idc.methods.adpo.pool import normalize
from lightning_idc.methods.policy.rewards import Reward, compute_rewards
from lightning_idc.methods.policy.rollout import grouped
from lightning_idc.models.addon import TrainingStep
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.synthesis.models.base import TextEncoder
from lightning_idc.utils.bounds import PositiveFloat, PositiveInt, PositiveShare, check_arguments

if TYPE_CHECKING:
    from lightning_idc.data.datamodule import PairDataModule


class RewardMined(NegativeSource):
    """Negatives of :class:`PreferenceOptimization`: samples of the policy with the lowest rewards.

    With an `AdversarialRetriever` as well, the retriever draws its ``fraction`` of the negatives and this source the
    rest. A sample that equals a reference, or has a reward of ``max_reward`` or more, is replaced by a caption of
    another pair.

    Args:
        reward: reward of the samples.
        samples: number of samples per pair; those with the lowest rewards are the negatives.
        max_reward: samples with this reward or more are not negatives; None for no bound.
        temperature: sampling temperature.
        top_p: probability mass of the tokens to sample from.
        too_similar: as in :class:`~lightning_idc.methods.adpo.pool.CaptionPool`.
        threshold: as in :class:`~lightning_idc.methods.adpo.pool.CaptionPool`.

    Raises:
        ConfigError: a number is out of range.
    """

    def __init__(
        self,
        reward: Reward,
        samples: PositiveInt = 8,
        max_reward: float | None = 1.0,
        temperature: PositiveFloat = 1.0,
        top_p: PositiveShare = 1.0,
        too_similar: TextEncoder | None = None,
        threshold: PositiveShare | None = None,
    ) -> None:
        check_arguments(RewardMined.__init__, locals())
        self.reward, self.samples, self.max_reward = reward, samples, max_reward
        self.temperature, self.top_p = temperature, top_p
        self.reads_captioner = True
        self.fallback = RandomCaption(too_similar=too_similar, threshold=threshold)

    def setup(self, data: PairDataModule) -> None:
        self.reward.setup(data)
        self.fallback.setup(data)

    def draw(self, step: TrainingStep[PairCaptioner], count: int, generator: torch.Generator) -> RejectedCaptions:
        captioner = step.module
        negatives = self.fallback.draw(step, count, generator)
        num_samples = max(self.samples, count)
        captions = captioner.generate(
            step.features, samples=num_samples, temperature=self.temperature, top_p=self.top_p, generator=generator
        )
        texts = grouped([caption.text for caption in captions], num_samples)
        rewards = compute_rewards(self.reward, step.batch, texts).tolist()
        for row, references, samples, sample_rewards in zip(
            negatives.texts, step.batch.references, texts, rewards, strict=True
        ):
            # each sentence once, the lowest reward first
            scored = {normalize(text): (reward, text) for reward, text in zip(sample_rewards, samples, strict=True)}
            ordered = sorted(scored.values())
            is_negative = self.fallback.pool.is_negative_text([text for _, text in ordered], references)
            mined = [
                text
                for (reward, text), flag in zip(ordered, is_negative, strict=True)
                if flag and (self.max_reward is None or reward < self.max_reward)
            ]
            row[: len(mined)] = mined[:count]
        log_too_similar(step, self.fallback.pool)
        return negatives
