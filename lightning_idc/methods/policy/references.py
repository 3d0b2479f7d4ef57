"""Reference policies (TRL's ``ref_model``) of preference and policy optimisation.

======================  ==========================================================  ============================
class                   reference                                                   memory
======================  ==========================================================  ============================
:class:`FrozenCopy`     the policy at the start of training                         a second policy
:class:`MovingAverage`  an exponential moving average (TRL's ``sync_ref_model``)    a second policy
:class:`AdaptersOff`    the policy without its adapters                             none
:class:`AdapterCopy`    the policy with its adapters at the start of training       a second set of adapters
:class:`NoReference`    none, for ``reference_free`` losses                         none
======================  ==========================================================  ============================
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from lightning_idc.images.types import PairFeatures
from lightning_idc.models.addon import AUX, TrainingStep
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.utils.bounds import PositiveInt, Share, check_arguments
from lightning_idc.utils.errors import ConfigError


class ReferencePolicy(nn.Module):
    """Base class of policies that the trained policy is compared with."""

    def setup(self, captioner: PairCaptioner) -> None:
        """Copy the parts of the policy that the reference needs; called once, after the network is built."""

    def update(self, captioner: Any) -> None:
        """Update the reference after a training step, when gathered weights are sharded again."""

    def save(self) -> None:
        """Write files that outlive the run; called on all processes at every checkpoint and at the end of training."""

    def extra_state(self) -> dict[str, Any]:
        """State for a checkpoint in addition to weights, in plain types; called on all processes."""
        return {}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        """Restore :meth:`extra_state` from the checkpoint of a resumed run."""

    @abstractmethod
    def score(self, step: TrainingStep[PairCaptioner], tokens: Tensor, mask: Tensor) -> Tensor:
        """Summed log-probability ``(B, K)`` of captions, without a gradient.

        Args:
            step: training step, with its batch and features.
            tokens: token ids ``(B, K, T)``.
            mask: bool ``(B, K, T)``, True at tokens that count.
        """

    def log_probs(self, step: TrainingStep[PairCaptioner], tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Log-probability of every token, ``(B, K, T)``, without a gradient (TRL's ``ref_per_token_logps``).

        Args:
            step: training step, with its batch and features.
            tokens: token ids ``(B, K, T)``.
            mask: as in :meth:`~lightning_idc.models.captioner.PairCaptioner.log_probs`.

        Raises:
            ConfigError: this reference computes sums only.
        """
        raise ConfigError(
            f"{type(self).__name__} has no log-probabilities per token; use FrozenCopy, MovingAverage or AdaptersOff"
        )


class PolicyReference(ReferencePolicy):
    """A reference policy that is a captioner and scores captions token by token."""

    @abstractmethod
    def log_probs(self, step: TrainingStep[PairCaptioner], tokens: Tensor, mask: Tensor | None = None) -> Tensor: ...

    def score(self, step: TrainingStep[PairCaptioner], tokens: Tensor, mask: Tensor) -> Tensor:
        # the same computation as in the policy's score, so that equal policies have equal scores
        return (self.log_probs(step, tokens, mask) * mask).sum(-1)


def encoding_is_trained(features: PairFeatures) -> bool:
    """Whether the features depend on trained weights. If not, policy and reference share them."""
    return any(tensor.requires_grad for tensor in (features.memory, *features.extras.values()))


@runtime_checkable
class DisablesAdapters(Protocol):
    """Interface of captioners that :class:`AdaptersOff` supports."""

    def disable_adapters(self) -> AbstractContextManager[None]: ...

    def trainable_non_adapter_parameters(self) -> list[str]: ...


class AdaptersOff(PolicyReference):
    """The policy with all its adapters (LoRA, MDP) switched off; needs no memory.

    After supervised training with adapters, merge them into the network first. Otherwise the reference would be the
    network before that training.
    """

    def __init__(self) -> None:
        super().__init__()
        self._checked = False

    def log_probs(self, step: TrainingStep[PairCaptioner], tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        captioner = step.module
        if not self._checked:
            self._check(captioner)
        with torch.no_grad(), self.as_reference(captioner):
            features = captioner.encode(step.batch) if encoding_is_trained(step.features) else step.features
            log_probs: Tensor = captioner.log_probs(features, tokens, mask)
            return log_probs

    def as_reference(self, captioner: Any) -> AbstractContextManager[None]:
        """Context in which the captioner is the reference policy."""
        context: AbstractContextManager[None] = captioner.disable_adapters()
        return context

    def _check(self, captioner: Any) -> None:
        if not isinstance(captioner, DisablesAdapters):
            raise ConfigError(
                f"{type(captioner).__name__} has no adapters to switch off; use FrozenCopy as the reference"
            )
        leaking = captioner.trainable_non_adapter_parameters()
        if leaking:
            raise ConfigError(
                f"{len(leaking)} parameters outside of the adapters are trained, such as {', '.join(leaking[:3])}; the "
                "reference would change with them. Freeze them, or use FrozenCopy"
            )
        self._checked = True


class AdapterCopy(AdaptersOff):
    """The policy with a frozen copy of its adapters; needs memory for a second set of adapters.

    For a policy that continues to train the LoRA of supervised training. The copy is a second PEFT adapter in the same
    layers (TRL's ``ref_adapter_name``).

    Raises:
        ConfigError: in :meth:`setup`, if there are no adapters, or adapters that cannot be copied.
    """

    def setup(self, captioner: PairCaptioner) -> None:
        adapters = [adapter for adapter in captioner.adapters.installed().values() if not adapter.merged]
        if not adapters:
            raise ConfigError(f"{type(captioner).__name__} has no adapters to copy; use FrozenCopy")
        for adapter in adapters:
            adapter.save_copy()

    @contextmanager
    def as_reference(self, captioner: Any) -> Iterator[None]:
        with ExitStack() as stack:
            for adapter in captioner.adapters.installed().values():
                if not adapter.merged:
                    stack.enter_context(adapter.using_copy())
            yield


class FrozenCopy(PolicyReference):
    """A frozen copy of the policy at the start of training; needs memory for a second policy, also in checkpoints."""

    twin: PairCaptioner

    def setup(self, captioner: PairCaptioner) -> None:
        if captioner.net is None:
            raise ConfigError(f"{type(captioner).__name__} has no network yet, so there is nothing to copy")
        trainer, captioner._trainer = captioner._trainer, None
        addons = captioner._modules.pop(AUX, None)
        try:
            self.twin = copy.deepcopy(captioner)
        finally:
            captioner._trainer = trainer
            if addons is not None:
                captioner._modules[AUX] = addons
        self.twin.requires_grad_(False)

    @torch.no_grad()
    def log_probs(self, step: TrainingStep[PairCaptioner], tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        self.twin.eval()  # Lightning switches all sub-modules to training mode
        features = self.twin.encode(step.batch) if encoding_is_trained(step.features) else step.features
        return self.twin.log_probs(features, tokens, mask)


class MovingAverage(FrozenCopy):
    """An exponential moving average of the policy.

    With ``decay`` 0 and ``every`` 512 the copy is replaced every 512 steps, as with TRL's ``sync_ref_model``.

    Args:
        decay: weight of the average in an update; 1 minus TRL's ``ref_model_mixup_alpha``.
        every: number of optimizer steps between updates (TRL's ``ref_model_sync_steps``).

    Raises:
        ConfigError: ``decay`` is not between 0 and 1, or ``every`` is below 1.
    """

    steps: Tensor

    def __init__(self, decay: Share = 0.999, every: PositiveInt = 1) -> None:
        check_arguments(MovingAverage.__init__, locals())
        super().__init__()
        self.decay, self.every = decay, every
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def update(self, captioner: Any) -> None:
        global_step = captioner.trainer.global_step
        if global_step // self.every == int(self.steps) // self.every:
            return
        self.steps.fill_(global_step)
        policy = dict(captioner.named_parameters())
        for path, parameter in self.twin.named_parameters():
            if policy[path].requires_grad:
                if parameter.dtype in (torch.bfloat16, torch.float16):
                    raise ConfigError(
                        f"a MovingAverage of weights in {parameter.dtype} would not move, as small updates are rounded "
                        f"to 0; train with precision bf16-mixed, or use another reference"
                    )
                parameter.lerp_(policy[path].to(parameter.dtype), 1 - self.decay)
        # buffers, such as running statistics of a batch norm, are averages already and are copied
        policy_buffers = dict(captioner.named_buffers())
        for path, buffer in self.twin.named_buffers():
            buffer.copy_(policy_buffers[path])


class NoReference(ReferencePolicy):
    """No reference policy: the log-probability of every caption is 0. For losses without one (SimPO, CPO, ORPO)."""

    def score(self, step: TrainingStep[PairCaptioner], tokens: Tensor, mask: Tensor) -> Tensor:
        return torch.zeros(tokens.shape[:2], device=tokens.device)
