"""SelfCritical and GroupRelative: train a captioner by rewards of its samples (SCST; GRPO, DAPO, GSPO, RLOO)."""

from __future__ import annotations

from typing import Any, Literal, cast

from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_idc.methods.policy.losses import Average, Level
from lightning_idc.methods.policy.policy_addon import PolicyGradient, Surrogate
from lightning_idc.methods.policy.policy_callback import PolicyCallback, train_data
from lightning_idc.methods.policy.references import FrozenCopy, ReferencePolicy
from lightning_idc.methods.policy.rewards import CiderReward, Reward
from lightning_idc.models.addon import Addon, addons_of
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.utils.bounds import (
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    PositiveShare,
    TwoOrMore,
    check_arguments,
)
from lightning_idc.utils.errors import ConfigError

CLIP = 0.2
"""Default distance from 1 at which the probability ratio is clipped."""


class RewardOptimization(PolicyCallback):
    """Base class of :class:`SelfCritical` and :class:`GroupRelative`.

    Args:
        reward: reward of the captioner's samples.
        surrogate: advantages and surrogate loss.
        samples: K, number of captions sampled per pair and step (TRL's ``num_generations``).
        reference: reference policy of the KL divergence; :class:`FrozenCopy` when None. It needs a beta above 0.
        temperature: sampling temperature. The loss uses the probabilities at temperature 1.
        top_p: probability mass of the tokens to sample from.
        iterations: number of steps that train on the samples of a batch (TRL's ``num_iterations``). The batches of the
            loader in between are skipped.
        caption_weight: weight of the caption loss of the references.
        add_to_loss: whether the loss, times ``weight``, is added to the caption loss or to the loss of
            ``PreferenceOptimization``. If not, it replaces the caption loss.
        dropout: whether dropout stays on.
        name: key under ``aux_addons``.
        weight: factor of the loss; 0 equals absent.

    Raises:
        ConfigError: a number is out of range, or two arguments contradict each other.
    """

    def __init__(
        self,
        reward: Reward,
        surrogate: Surrogate,
        samples: PositiveInt,
        reference: ReferencePolicy | None = None,
        temperature: PositiveFloat = 1.0,
        top_p: PositiveShare = 1.0,
        iterations: PositiveInt = 1,
        caption_weight: NonNegativeFloat = 0.0,
        add_to_loss: bool = False,
        dropout: bool = False,
        name: str = "policy",
        weight: float = 1.0,
    ) -> None:
        check_arguments(RewardOptimization.__init__, locals())
        super().__init__(self._reference(reference, surrogate.beta), dropout, name, weight)
        if add_to_loss and (caption_weight or iterations > 1):
            raise ConfigError(
                "add_to_loss adds to a loss with its own captions and batches; leave caption_weight at 0 and "
                "iterations at 1"
            )
        self.reward, self.surrogate, self.samples = reward, surrogate, samples
        self.temperature, self.top_p, self.iterations = temperature, top_p, iterations
        self.caption_weight, self.add_to_loss = caption_weight, add_to_loss
        self._rollout_state: dict[str, Any] = {}

    @staticmethod
    def _reference(reference: ReferencePolicy | None, beta: float) -> ReferencePolicy | None:
        if not beta:
            if reference is not None:
                raise ConfigError(
                    f"reference is {type(reference).__name__} and beta 0, which leaves out the KL divergence; set beta "
                    "as well"
                )
            return None
        return FrozenCopy() if reference is None else reference

    def build(self, module: LightningModule) -> Addon:
        if not isinstance(module, PairCaptioner):
            raise ConfigError(f"{type(self).__name__} trains a PairCaptioner; this is a {type(module).__name__}")
        if self.iterations > 1 and module.trainer.accumulate_grad_batches > 1:
            raise ConfigError(
                "iterations above 1 take several optimizer steps on one batch, which accumulate_grad_batches would "
                "merge; set one of them to 1"
            )
        self.reward.setup(train_data(module))
        if self.reference is not None:
            self.reference.setup(module)
        return PolicyGradient(
            reward=self.reward,
            surrogate=self.surrogate,
            reference=self.reference,
            samples=self.samples,
            temperature=self.temperature,
            top_p=self.top_p,
            iterations=self.iterations,
            caption_weight=self.caption_weight,
            add_to_loss=self.add_to_loss,
        )

    def reuse(self, module: LightningModule, addon: Addon) -> None:
        assert isinstance(addon, PolicyGradient)
        self.reward, self.reference = addon.reward, addon.reference

    def addon(self, module: LightningModule) -> PolicyGradient:
        """The add-on that this callback attached."""
        addon = addons_of(module)[self.name]
        assert isinstance(addon, PolicyGradient)
        return addon

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        state, self._rollout_state = self._rollout_state, {}
        if state:
            self.addon(pl_module).load_rollout_state(state)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(trainer, pl_module, checkpoint)
        if self.iterations > 1:
            checkpoint["callbacks"].setdefault(self.state_key, {}).update(self.addon(pl_module).rollout_state())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._rollout_state = state_dict


class SelfCritical(RewardOptimization):
    """Self-critical sequence training: the greedy caption is the baseline (SCST, Rennie et al. 2017).

    Args:
        reward: reward of captions; :class:`CiderReward` when None.
        samples: number of captions sampled per pair and step.
        beta: weight of the KL divergence to the reference policy.
        reference: reference policy, as in :class:`RewardOptimization`.
        options: further arguments of :class:`RewardOptimization`.

    Example:
        >>> SelfCritical(samples=2).surrogate.advantage
        'greedy'
    """

    def __init__(
        self,
        reward: Reward | None = None,
        samples: PositiveInt = 1,
        beta: NonNegativeFloat = 0.0,
        reference: ReferencePolicy | None = None,
        **options: Any,
    ) -> None:
        check_arguments(SelfCritical.__init__, locals())
        surrogate = Surrogate(
            advantage="greedy",
            clip_low=CLIP,
            clip_high=None,
            level="token",
            averaging="sample",
            filter_groups=False,
            beta=beta,
        )
        super().__init__(CiderReward() if reward is None else reward, surrogate, samples, reference, **options)


class GroupRelative(RewardOptimization):
    """Group-relative policy optimisation: the baseline of a sample is the mean reward of its pair (GRPO and variants).

    The defaults are those of GRPO; ``beta`` is 0.04 in its paper and 0 in TRL. The variants are

    - Dr. GRPO: ``scale: none``, ``averaging: constant``;
    - DAPO: ``clip_high: 0.28``, ``averaging: token``, ``filter_groups: true``, ``iterations`` above 1;
    - GSPO: ``level: sequence``, ``iterations`` above 1;
    - RLOO: ``scale: leave_one_out``.

    Args:
        reward: reward of captions; :class:`CiderReward` when None.
        samples: K, number of captions sampled per pair and step (TRL's ``num_generations``), at least 2.
        beta: weight of the KL divergence to the reference policy.
        reference: reference policy, as in :class:`RewardOptimization`.
        scale: divisor of the advantages (TRL's ``scale_rewards``): the standard deviation over the samples of the pair
            (``group``) or of the step (``batch``), or ``none``; ``leave_one_out`` subtracts the mean of the other
            samples and does not divide.
        clip: the probability ratio is clipped at 1 - clip (TRL's ``epsilon``); 0.2 when None. The ratio differs from 1
            with ``iterations`` above 1, or with the log-probabilities of :class:`ServerRollouts`.
        clip_high: the probability ratio is clipped at 1 + clip_high (TRL's ``epsilon_high``); ``clip`` when None.
        level: whether the probability ratio is that of tokens or of captions (TRL's ``importance_sampling_level``).
            As ``clip``, ``sequence`` needs a ratio other than 1.
        averaging: mean over tokens and samples (TRL's ``loss_type``): ``sample`` (``grpo``), ``token`` (``dapo``) or
            ``constant`` (``dr_grpo``); see :func:`lightning_idc.methods.policy.losses.average`.
        filter_groups: whether pairs whose samples have equal rewards are left out.
        options: further arguments of :class:`RewardOptimization`.

    Example:
        >>> GroupRelative(samples=8, scale="none", averaging="constant").surrogate.averaging
        'constant'
    """

    def __init__(
        self,
        reward: Reward | None = None,
        samples: TwoOrMore = 8,
        beta: NonNegativeFloat = 0.0,
        reference: ReferencePolicy | None = None,
        scale: Literal["group", "batch", "none", "leave_one_out"] = "group",
        clip: NonNegativeFloat | None = None,
        clip_high: NonNegativeFloat | None = None,
        level: Level = "token",
        averaging: Average = "sample",
        filter_groups: bool = False,
        **options: Any,
    ) -> None:
        check_arguments(GroupRelative.__init__, locals())
        surrogate = Surrogate(
            advantage=scale,
            clip_low=CLIP if clip is None else clip,
            clip_high=clip_high,
            level=level,
            averaging=averaging,
            filter_groups=filter_groups,
            beta=beta,
        )
        super().__init__(CiderReward() if reward is None else reward, surrogate, samples, reference, **options)
        chosen = {"clip": clip, "clip_high": clip_high, "level": None if level == "token" else level}
        self._of_ratio = {name: value for name, value in chosen.items() if value is not None}

    def build(self, module: LightningModule) -> Addon:
        callbacks: list[Callback] = cast(Any, module.trainer).callbacks
        if self.iterations == 1 and not any(getattr(callback, "has_log_probs", False) for callback in callbacks):
            for name, value in self._of_ratio.items():
                raise ConfigError(
                    f"{name} is {value!r} and iterations 1: the probability ratio is then always 1, and {name} has no "
                    f"effect; leave {name} out, or set iterations above 1"
                )
        return super().build(module)
