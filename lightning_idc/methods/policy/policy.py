"""SelfCritical and GroupRelative: train a captioner by rewards of what it says itself."""

from __future__ import annotations

from typing import Any, Literal, get_args

from lightning.pytorch import LightningModule, Trainer

from lightning_idc.methods.policy.advantages import ADVANTAGES
from lightning_idc.methods.policy.losses import Average, Level
from lightning_idc.methods.policy.policy_addon import PolicyGradient, Surrogate
from lightning_idc.methods.policy.policy_callback import PolicyCallback, train_data
from lightning_idc.methods.policy.references import FrozenCopy, ReferencePolicy
from lightning_idc.methods.policy.rewards import CiderReward, Reward
from lightning_idc.models.addon import Addon, addons_of
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.nn.decoding.sampling import check_sampling
from lightning_idc.utils.errors import ConfigError, check_choice, check_number


class RewardOptimization(PolicyCallback):
    """What all policy optimisation shares; use :class:`SelfCritical` or :class:`GroupRelative`.

    Args:
        reward: judges what the captioner says.
        surrogate: how advantages become a loss.
        samples: captions drawn per pair and step.
        reference: what the policy shall not leave too far; :class:`FrozenCopy` when None. Not asked if beta is 0.
        temperature: of the sampling. The loss takes the captioner's own probabilities, which are those of 1.
        top_p: of the sampling.
        iterations: steps that train on the captions of a batch; the loader's batches between them are left out.
        caption_weight: of the caption loss of the references, an anchor.
        beside: add the loss, times ``weight``, to the caption loss or to that of ``PreferenceOptimization`` instead of
            replacing it.
        dropout: leave dropout on.
        name: key under ``aux_addons``.
        weight: 0 equals absent.

    Raises:
        ConfigError: a number is out of range, or two arguments contradict each other.
    """

    def __init__(
        self,
        reward: Reward,
        surrogate: Surrogate,
        samples: int,
        reference: ReferencePolicy | None = None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        iterations: int = 1,
        caption_weight: float = 0.0,
        beside: bool = False,
        dropout: bool = False,
        name: str = "policy",
        weight: float = 1.0,
    ) -> None:
        super().__init__(self._reference(reference, surrogate.beta), dropout, name, weight)
        check_sampling(temperature, top_p, samples)
        check_number("iterations", iterations, minimum=1)
        check_number("beta", surrogate.beta, minimum=0)
        check_number("caption_weight", caption_weight, minimum=0)
        if beside and (caption_weight or iterations > 1):
            raise ConfigError(
                "beside adds to a loss that has its own captions and batches; leave caption_weight at 0 and iterations "
                "at 1"
            )
        self.reward, self.surrogate, self.samples = reward, surrogate, samples
        self.temperature, self.top_p, self.iterations = temperature, top_p, iterations
        self.caption_weight, self.beside = caption_weight, beside
        self._kept: dict[str, Any] = {}

    @staticmethod
    def _reference(given: ReferencePolicy | None, beta: float) -> ReferencePolicy | None:
        if not beta:
            return None
        return FrozenCopy() if given is None else given

    def build(self, host: LightningModule) -> Addon:
        if not isinstance(host, PairCaptioner):
            raise ConfigError(f"{type(self).__name__} trains a PairCaptioner; this is a {type(host).__name__}")
        if self.iterations > 1 and host.trainer.accumulate_grad_batches > 1:
            raise ConfigError(
                "iterations above 1 take optimizer steps on one batch, which accumulate_grad_batches would merge; set "
                "one of them to 1"
            )
        self.reward.connect(train_data(host))
        if self.reference is not None:
            self.reference.connect(host)
        return PolicyGradient(
            self.reward,
            self.surrogate,
            self.reference,
            self.samples,
            self.temperature,
            self.top_p,
            self.iterations,
            self.caption_weight,
            self.beside,
        )

    def adopt(self, host: LightningModule, addon: Addon) -> None:
        assert isinstance(addon, PolicyGradient)
        self.reward, self.reference = addon.reward, addon.reference

    def addon(self, host: LightningModule) -> PolicyGradient:
        """The add-on that this callback attached."""
        found = addons_of(host)[self.name]
        assert isinstance(found, PolicyGradient)
        return found

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        kept, self._kept = self._kept, {}
        if kept:
            self.addon(pl_module).restore(kept)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(trainer, pl_module, checkpoint)
        if self.iterations > 1:
            checkpoint["callbacks"].setdefault(self.state_key, {}).update(self.addon(pl_module).kept())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._kept = state_dict


class SelfCritical(RewardOptimization):
    """Self-critical sequence training: better than the greedy caption is good, worse is bad (Rennie et al. 2017).

    Args:
        reward: judges captions; :class:`CiderReward` when None.
        samples: captions drawn per pair and step.
        beta: factor of the KL divergence to the reference policy.
        reference: as of :class:`RewardOptimization`.
        options: of :class:`RewardOptimization`.

    Example:
        >>> SelfCritical(samples=2).surrogate.advantage
        'greedy'
    """

    def __init__(
        self,
        reward: Reward | None = None,
        samples: int = 1,
        beta: float = 0.0,
        reference: ReferencePolicy | None = None,
        **options: Any,
    ) -> None:
        surrogate = Surrogate("greedy", 0.2, None, "token", "sample", False, beta)
        super().__init__(CiderReward() if reward is None else reward, surrogate, samples, reference, **options)


class GroupRelative(RewardOptimization):
    """Group-relative policy optimisation: better than the pair's other samples is good, worse is bad (GRPO and kin).

    The defaults are GRPO's, with ``beta`` 0.04 in its paper and 0 in TRL; Dr. GRPO is ``scale: none`` and ``averaging:
    constant``; DAPO is ``clip_high: 0.28``, ``averaging: token`` and ``filter_groups: true``; GSPO is ``level:
    sequence``; RLOO is ``scale: leave_one_out``.

    Args:
        reward: judges captions; :class:`CiderReward` when None.
        samples: captions drawn per pair and step, at least 2.
        beta: factor of the KL divergence to the reference policy.
        reference: as of :class:`RewardOptimization`.
        scale: of advantages: the deviation of the pair's own samples, of the whole step, none, or the mean of the other
            samples as the baseline.
        clip: how far the probability ratio may go before it counts no more.
        clip_high: the same upwards; ``clip`` when None.
        level: ratios of tokens or of captions.
        averaging: as of :func:`lightning_idc.methods.policy.losses.average`.
        filter_groups: leave out pairs whose samples all have one reward.
        options: of :class:`RewardOptimization`.

    Example:
        >>> GroupRelative(samples=8, scale="none", averaging="constant").surrogate.averaging
        'constant'
    """

    def __init__(
        self,
        reward: Reward | None = None,
        samples: int = 8,
        beta: float = 0.0,
        reference: ReferencePolicy | None = None,
        scale: Literal["group", "batch", "none", "leave_one_out"] = "group",
        clip: float = 0.2,
        clip_high: float | None = None,
        level: Level = "token",
        averaging: Average = "sample",
        filter_groups: bool = False,
        **options: Any,
    ) -> None:
        if samples < 2:
            raise ConfigError(f"samples is {samples}; expected at least two captions of a pair to compare")
        check_choice("scale", scale, ADVANTAGES)
        check_choice("level", level, get_args(Level))
        check_choice("averaging", averaging, get_args(Average))
        check_number("clip", clip, minimum=0)
        if clip_high is not None:
            check_number("clip_high", clip_high, minimum=0)
        surrogate = Surrogate(scale, clip, clip_high, level, averaging, filter_groups, beta)
        super().__init__(CiderReward() if reward is None else reward, surrogate, samples, reference, **options)
