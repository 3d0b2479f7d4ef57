"""PolicyGradient: the add-on that draws captions, has them judged, and makes the better ones likelier."""

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
from lightning_idc.methods.policy.rewards import Reward, rewards_of
from lightning_idc.methods.policy.rollout import Draw, Rollout, draw
from lightning_idc.models.addon import ADDON_METHODS, Addon, TrainingStep
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.distributed import all_gather_object, get_rank_world_size, mean_over_processes


@dataclass(frozen=True, slots=True)
class Surrogate:
    """How advantages become a loss.

    Args:
        advantage: name of :data:`ADVANTAGES`, or ``greedy`` (SCST).
        low: as of :func:`clipped_surrogate`.
        high: as of :func:`clipped_surrogate`.
        level: as of :func:`importance_ratio`.
        averaging: as of :func:`average`.
        filter_groups: leave out pairs whose samples all have one reward.
        beta: factor of the KL divergence to the reference policy.
    """

    advantage: str
    low: float
    high: float | None
    level: Level
    averaging: Average
    filter_groups: bool
    beta: float


class PolicyGradient(Addon):
    """Replaces the caption loss, or adds to what trains beside it, the policy gradient of a reward.

    Args:
        reward: judges what the policy says.
        surrogate: how advantages become a loss.
        reference: what the policy shall not leave too far; None without a KL divergence.
        samples: K, captions drawn per pair.
        temperature: of the sampling.
        top_p: of the sampling.
        iterations: steps that train on what was drawn.
        caption_weight: of the caption loss of the references.
        beside: add the loss to that of the captioner or of another add-on.
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
        beside: bool,
    ) -> None:
        super().__init__()
        self.reward, self.surrogate, self.reference = reward, surrogate, reference
        self.samples, self.temperature, self.top_p = samples, temperature, top_p
        self.iterations, self.caption_weight, self.beside = iterations, caption_weight, beside
        self.draw: Draw = draw
        """Draws captions; the policy itself, unless ServerRollouts has a server do it."""
        self.rollout: Rollout | None = None
        # within the add-on's building this follows from the run's seed and the add-on's name
        self._seed = torch.initial_seed()

    @property
    def replaces_objective(self) -> bool:
        return not self.beside

    def batch(self, step: TrainingStep) -> PairBatch:
        """The batch of the loader, or once more the one whose captions are not used up."""
        if self.rollout is not None and self.rollout.uses >= self.iterations:
            self.rollout = None
        if self.rollout is None:
            return step.batch
        self.rollout = self.rollout.to(step.host.device)
        assert self.rollout.batch is not None
        return self.rollout.batch

    def objective(self, step: TrainingStep) -> Tensor:
        loss = self.policy_loss(step)
        if self.caption_weight:
            host: Any = step.host
            loss = loss + self.caption_weight * host.caption_loss(step.features, step.batch)
        return loss

    def losses(self, step: TrainingStep) -> dict[str, Tensor]:
        return {"policy_loss": self.policy_loss(step)} if self.beside and self.weight else {}

    def policy_loss(self, step: TrainingStep) -> Tensor:
        """Loss of a step; draws captions unless those of an earlier step are used once more."""
        host = step.host
        assert isinstance(host, PairCaptioner)
        rollout = self.rollout or self._drawn(step)
        log_probs = host.log_probs(step.features, rollout.tokens, rollout.mask)
        setting, mask = self.surrogate, rollout.mask
        figures: dict[str, Tensor] = {}
        now = log_probs.detach()
        # a server need not give the log-probability of every token
        old = now if rollout.old is None else torch.where(rollout.old.isnan(), now, rollout.old)
        if rollout.old is not None and not rollout.uses:
            figures["sampling/sampling_logp_difference/mean"] = average((now - old).abs(), mask, "token")
        ratio = importance_ratio(log_probs, old, mask, setting.level)
        losses = clipped_surrogate(ratio, rollout.advantages, setting.low, setting.high)
        clipped = is_clipped(ratio, rollout.advantages, setting.low, setting.high)
        figures["clip_ratio/region_mean"] = average(clipped.float(), mask, "sample")
        if self.reference is not None:
            divergence = kl_k3(log_probs, self.reference.log_probs(step, rollout.tokens, rollout.mask))
            losses = losses + setting.beta * divergence
            figures["kl"] = average(divergence.detach(), mask, "token")
        kept = has_spread(rollout.rewards) if setting.filter_groups else None
        self._log(step, rollout, figures)
        if self.iterations > 1:
            rollout.old, rollout.batch, rollout.uses = old, step.batch, rollout.uses + 1
            self.rollout = rollout
        return average(losses, mask, setting.averaging, kept, host.hparams["max_length"])

    def _drawn(self, step: TrainingStep) -> Rollout:
        host: Any = step.host
        key = f"{self._seed}/{host.trainer.current_epoch}"
        drawn = self.draw(step, self.samples, self.temperature, self.top_p, key)
        texts = drawn.texts
        greedy = self.surrogate.advantage == "greedy"
        if greedy:
            best = host.generate(step.features, num_beams=1)
            texts = [[*row, caption.text] for row, caption in zip(texts, best, strict=True)]
        rewards = rewards_of(self.reward, step.batch, texts).to(drawn.tokens.device)
        if greedy:
            rewards, baseline = rewards[:, :-1], rewards[:, -1:]
            advantages = self_critical(rewards, baseline)
        else:
            advantages = ADVANTAGES[self.surrogate.advantage](rewards)
        return Rollout(drawn.tokens, drawn.mask, rewards, advantages, drawn.old)

    def _log(self, step: TrainingStep, rollout: Rollout, figures: dict[str, Tensor]) -> None:
        """Figures by TRL's names, means over processes."""
        rewards, host = rollout.rewards, step.host
        figures |= {
            "reward": rewards.mean(),
            "reward_std": rewards.std(1).mean() if rewards.shape[1] > 1 else rewards.new_zeros(()),
            "frac_reward_zero_std": 1 - has_spread(rewards).float().mean(),
            "completions/mean_length": rollout.mask.sum(-1).float().mean(),
        }
        own = [number for pair in self.reward.parts.values() for number in pair]
        values = mean_over_processes(torch.stack([*figures.values(), *rewards.new_tensor(own)]))
        parts = values[len(figures) :].view(-1, 2)
        logged = {f"train/{name}": value for name, value in zip(figures, values[: len(figures)], strict=True)}
        logged |= {
            f"train/rewards/{name}": total / count.clamp(min=1e-6)
            for name, (total, count) in zip(self.reward.parts, parts, strict=True)
        }
        host.log_dict(logged, batch_size=len(rewards))

    def kept(self) -> dict[str, Any]:
        """What a checkpoint must hold to go on with captions that are not used up; called on all processes."""
        return {"rollouts": all_gather_object(None if self.rollout is None else self.rollout.plain())}

    def restore(self, kept: dict[str, Any]) -> None:
        """Take over what :meth:`kept` gave; drawn anew on another number of processes."""
        rank, count = get_rank_world_size()
        rollouts = kept.get("rollouts") or []
        own = rollouts[rank] if len(rollouts) == count else None
        self.rollout = None if own is None else Rollout.of_plain(own)
