"""PolicyGradient: policy optimisation (SCST, GRPO, DAPO, GSPO, RLOO) as an add-on.

:meth:`PolicyGradient.policy_loss` is one training step:

1. sample K captions per pair and reward them (:meth:`PolicyGradient._sample`, ``rollout.py``, ``rewards.py``),
2. compute their advantages (``advantages.py``),
3. compute the clipped surrogate of the probability ratio, and the KL divergence to the reference (``losses.py``),
4. average over tokens and samples.

With ``iterations`` above 1, several steps train on the same samples: :meth:`PolicyGradient.batch` returns their batch
again instead of the loader's.

Shapes: B pairs, K sampled captions per pair, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightning_idc.images.types import PairBatch
from lightning_idc.methods.policy.advantages import ADVANTAGES, has_spread, self_critical
from lightning_idc.methods.policy.losses import (
    Average,
    Level,
    average,
    clipped_surrogate,
    importance_ratio,
    is_clipped,
    kl_k3,
)
from lightning_idc.methods.policy.references import ReferencePolicy
from lightning_idc.methods.policy.rewards import Reward, compute_rewards
from lightning_idc.methods.policy.rollout import CaptionSampler, Rollout, has_end, sample_captions
from lightning_idc.models.addon import ADDON_METHODS, Addon, TrainingStep
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.distributed import all_gather_object, get_rank_world_size, mean_over_processes
from lightning_idc.utils.bounds import NonNegativeFloat, check_fields


@dataclass(frozen=True, slots=True)
class Surrogate:
    """Advantages and surrogate loss.

    Args:
        advantage: key of :data:`ADVANTAGES`, or ``greedy`` (SCST).
        clip_low: as in :func:`clipped_surrogate`.
        clip_high: as in :func:`clipped_surrogate`.
        level: as in :func:`importance_ratio`.
        averaging: as in :func:`average`.
        filter_groups: whether pairs whose samples have equal rewards are left out.
        beta: weight of the KL divergence to the reference policy.
    """

    advantage: str
    clip_low: NonNegativeFloat
    clip_high: NonNegativeFloat | None
    level: Level
    averaging: Average
    filter_groups: bool
    beta: NonNegativeFloat

    def __post_init__(self) -> None:
        check_fields(self)


class PolicyGradient(Addon):
    """Trains a captioner by policy gradients of a reward, instead of or in addition to the caption loss.

    Args:
        reward: reward of the samples.
        surrogate: advantages and surrogate loss.
        reference: reference policy; None without a KL divergence.
        samples: K, number of captions sampled per pair.
        temperature: sampling temperature.
        top_p: probability mass of the tokens to sample from.
        iterations: number of steps that train on one set of samples.
        caption_weight: weight of the caption loss of the references.
        add_to_loss: whether the loss is added to the loss of the captioner or of another add-on.
    """

    sharded_methods = ADDON_METHODS

    def __init__(
        self,
        reward: Reward,
        surrogate: Surrogate,
        reference: ReferencePolicy | None,
        samples: int,
        temperature: float,
        top_p: float,
        iterations: int,
        caption_weight: float,
        add_to_loss: bool,
    ) -> None:
        super().__init__()
        self.reward, self.surrogate, self.reference = reward, surrogate, reference
        self.samples, self.temperature, self.top_p = samples, temperature, top_p
        self.iterations, self.caption_weight, self.add_to_loss = iterations, caption_weight, add_to_loss
        self.sampler: CaptionSampler = sample_captions
        """Samples captions from the policy; ServerRollouts replaces it."""
        self.rollout: Rollout | None = None
        # AddonCallback builds the add-on under a seed derived from the run's seed and the add-on's name
        self._seed = torch.initial_seed()

    @property
    def replaces_objective(self) -> bool:
        return not self.add_to_loss

    def batch(self, step: TrainingStep[PairCaptioner]) -> PairBatch:
        """The loader's batch, or the previous batch again while its samples have iterations left."""
        if self.rollout is not None and self.rollout.num_uses >= self.iterations:
            self.rollout = None
        if self.rollout is None:
            return step.batch
        self.rollout = self.rollout.to(step.module.device)
        assert self.rollout.batch is not None
        return self.rollout.batch

    def objective(self, step: TrainingStep[PairCaptioner]) -> Tensor:
        loss = self.policy_loss(step)
        if self.caption_weight:
            captioner = step.module
            loss = loss + self.caption_weight * captioner.caption_loss(step.features, step.batch)
        return loss

    def losses(self, step: TrainingStep[PairCaptioner]) -> dict[str, Tensor]:
        return {"policy_loss": self.policy_loss(step)} if self.add_to_loss and self.weight else {}

    def policy_loss(self, step: TrainingStep[PairCaptioner]) -> Tensor:
        """Policy-gradient loss of a batch, a scalar."""
        captioner = step.module
        rollout = self.rollout or self._sample(step)
        log_probs = captioner.log_probs(step.features, rollout.tokens, rollout.mask)  # (B, K, T)
        surrogate, mask = self.surrogate, rollout.mask
        metrics: dict[str, Tensor] = {}
        old_log_probs = log_probs.detach()
        if rollout.old_log_probs is not None:
            # a server may leave out the log-probability of some tokens, which is then NaN
            old_log_probs = torch.where(rollout.old_log_probs.isnan(), old_log_probs, rollout.old_log_probs)
            if not rollout.num_uses:
                difference = (log_probs.detach() - old_log_probs).abs()
                metrics["sampling/sampling_logp_difference/mean"] = average(difference, mask, "token")
        ratio = importance_ratio(log_probs, old_log_probs, mask, surrogate.level)  # (B, K, T) or (B, K, 1)
        losses = clipped_surrogate(ratio, rollout.advantages, surrogate.clip_low, surrogate.clip_high)
        clipped = is_clipped(ratio, rollout.advantages, surrogate.clip_low, surrogate.clip_high)
        metrics["clip_ratio/region_mean"] = average(clipped.float(), mask, "sample")
        if self.reference is not None:
            kl = kl_k3(log_probs, self.reference.log_probs(step, rollout.tokens, rollout.mask))  # (B, K, T)
            losses = losses + surrogate.beta * kl
            metrics["kl"] = average(kl.detach(), mask, "token")
        pair_mask = has_spread(rollout.rewards) if surrogate.filter_groups else None  # (B,)
        self._log(step, rollout, metrics)
        if self.iterations > 1:
            rollout.old_log_probs, rollout.batch = old_log_probs, step.batch
            rollout.num_uses += 1
            self.rollout = rollout
        return average(
            losses,
            mask,
            surrogate.averaging,
            pair_mask=pair_mask,
            max_length=captioner.hparams["max_length"],
        )

    def _sample(self, step: TrainingStep[PairCaptioner]) -> Rollout:
        """Sample K captions per pair, with their rewards and advantages."""
        captioner = step.module
        key = f"{self._seed}/{captioner.trainer.current_epoch}"
        samples = self.sampler(step, self.samples, temperature=self.temperature, top_p=self.top_p, key=key)
        texts, ended = samples.texts, samples.ended
        is_greedy = self.surrogate.advantage == "greedy"
        if is_greedy:
            vocabulary, greedy = captioner.built_vocabulary, captioner.decoder.search(step.features, num_beams=1).ids
            texts = [[*row, vocabulary.decode(ids)] for row, ids in zip(texts, greedy, strict=True)]
            ended = [[*row, has_end(ids, vocabulary.special)] for row, ids in zip(ended, greedy, strict=True)]
        # (B, K), or (B, K + 1) with the greedy caption
        rewards = compute_rewards(self.reward, step.batch, texts, ended).to(samples.tokens.device)
        if is_greedy:
            rewards, baseline = rewards[:, :-1], rewards[:, -1:]
            advantages = self_critical(rewards, baseline)
        else:
            advantages = ADVANTAGES[self.surrogate.advantage](rewards)
        return Rollout(
            tokens=samples.tokens,
            mask=samples.mask,
            rewards=rewards,
            advantages=advantages,
            old_log_probs=samples.old_log_probs,
        )

    def _log(self, step: TrainingStep[PairCaptioner], rollout: Rollout, metrics: dict[str, Tensor]) -> None:
        """Log metrics under TRL's names, as means over processes."""
        rewards, captioner = rollout.rewards, step.module
        metrics |= {
            "reward": rewards.mean(),
            "reward_std": rewards.std(1).mean() if rewards.shape[1] > 1 else rewards.new_zeros(()),
            "frac_reward_zero_std": 1 - has_spread(rewards).float().mean(),
            "completions/mean_length": rollout.mask.sum(-1).float().mean(),
        }
        part_values = [value for part in self.reward.parts.values() for value in part]
        values = mean_over_processes(torch.stack([*metrics.values(), *rewards.new_tensor(part_values)]))
        parts = values[len(metrics) :].view(-1, 2)
        logged = {f"train/{name}": value for name, value in zip(metrics, values[: len(metrics)], strict=True)}
        logged |= {
            f"train/rewards/{name}": total / count.clamp(min=1e-6)
            for name, (total, count) in zip(self.reward.parts, parts, strict=True)
        }
        captioner.log_dict(logged, batch_size=len(rewards))

    def rollout_state(self) -> dict[str, Any]:
        """Samples that have iterations left, for a checkpoint; called on all processes."""
        return {"rollouts": all_gather_object(None if self.rollout is None else self.rollout.plain())}

    def load_rollout_state(self, state: dict[str, Any]) -> None:
        """Restore :meth:`rollout_state`. With another number of processes, captions are sampled again."""
        rank, world_size = get_rank_world_size()
        rollouts = state.get("rollouts") or []
        rollout = rollouts[rank] if len(rollouts) == world_size else None
        self.rollout = None if rollout is None else Rollout.of_plain(rollout)
