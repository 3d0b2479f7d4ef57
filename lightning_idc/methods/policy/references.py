"""The reference policy of preference optimisation: adapters off or copied, a frozen copy, a moving average, or none."""

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
from lightning_idc.utils.errors import ConfigError


class ReferencePolicy(nn.Module):
    """What the trained policy is compared with."""

    def connect(self, host: PairCaptioner) -> None:
        """Remember the policy as it is; called once, when its layers exist."""

    def follow(self, host: Any) -> None:
        """Follow the policy; called after every step, when sharded weights are shares again."""

    def save(self) -> None:
        """Keep what shall outlast the run; called on all processes at every checkpoint and at the end."""

    def beyond_weights(self) -> dict[str, Any]:
        """What a checkpoint must hold besides weights, plain types only; called on all processes."""
        return {}

    def restore(self, kept: dict[str, Any]) -> None:
        """Take over what :meth:`beyond_weights` gave to the checkpoint that a run resumes from."""

    @abstractmethod
    def score(self, step: TrainingStep, tokens: Tensor, mask: Tensor) -> Tensor:
        """Summed log-probability ``(B, K)`` of ``tokens (B, K, T)`` without a gradient."""

    def log_probs(self, step: TrainingStep, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Log-probability of every token, ``(B, K, T)``, without a gradient.

        Args:
            step: with batch and features.
            tokens: ``(B, K, T)``.
            mask: as of :meth:`~lightning_idc.models.captioner.PairCaptioner.log_probs`.

        Raises:
            ConfigError: this reference knows sums only.
        """
        raise ConfigError(
            f"{type(self).__name__} gives no log-probability per token; use FrozenCopy, MovingAverage or AdaptersOff"
        )


class PolicyReference(ReferencePolicy):
    """A reference that is a captioner itself, and so scores any caption token by token."""

    @abstractmethod
    def log_probs(self, step: TrainingStep, tokens: Tensor, mask: Tensor | None = None) -> Tensor: ...

    def score(self, step: TrainingStep, tokens: Tensor, mask: Tensor) -> Tensor:
        # read as the policy reads them, or the two would differ by rounding where they are the same
        return (self.log_probs(step, tokens, mask) * mask).sum(-1)


def encoding_is_trained(features: PairFeatures) -> bool:
    """Whether anything that made these features is trained; if not, policy and reference see the same ones."""
    return any(tensor.requires_grad for tensor in (features.memory, *features.extras.values()))


@runtime_checkable
class SwitchesAdaptersOff(Protocol):
    """What :class:`AdaptersOff` asks of a captioner."""

    def disable_adapters(self) -> AbstractContextManager[None]: ...

    def trainable_non_adapter_parameters(self) -> list[str]: ...


class AdaptersOff(PolicyReference):
    """The policy with all its adapters (LoRA, MDP) switched off; costs no memory.

    After supervised training with adapters these must first become part of the network, or the reference would be the
    network before that training.
    """

    def __init__(self) -> None:
        super().__init__()
        self._checked = False

    def log_probs(self, step: TrainingStep, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        host: Any = step.host
        if not self._checked:
            self._check(host)
        with torch.no_grad(), self.switched(host):
            features = host.encode(step.batch) if encoding_is_trained(step.features) else step.features
            found: Tensor = host.log_probs(features, tokens, mask)
            return found

    def switched(self, host: Any) -> AbstractContextManager[None]:
        """While it is open the host is the reference policy."""
        found: AbstractContextManager[None] = host.disable_adapters()
        return found

    def _check(self, host: Any) -> None:
        if not isinstance(host, SwitchesAdaptersOff):
            raise ConfigError(f"{type(host).__name__} has no adapters to switch off; use FrozenCopy as the reference")
        leaking = host.trainable_non_adapter_parameters()
        if leaking:
            raise ConfigError(
                f"{len(leaking)} parameters are trained that switching off the adapters does not undo, such as "
                f"{', '.join(leaking[:3])}; the reference would move with them. Freeze them, or use FrozenCopy"
            )
        self._checked = True


class AdapterCopy(AdaptersOff):
    """The policy with its adapters as they were at the start; costs no more than their memory.

    For a policy whose LoRA comes from supervised training and is trained on: a second adapter of PEFT lies beside it in
    the same layers (TRL's ``ref_adapter_name``).

    Raises:
        ConfigError: on :meth:`connect`, if there are no adapters, or ones that keep no copy.
    """

    def connect(self, host: PairCaptioner) -> None:
        adapters = [adapter for adapter in host.adapters.installed().values() if not adapter.merged]
        if not adapters:
            raise ConfigError(f"{type(host).__name__} has no adapters to keep a copy of; take FrozenCopy")
        for adapter in adapters:
            adapter.keep_copy()

    @contextmanager
    def switched(self, host: Any) -> Iterator[None]:
        with ExitStack() as stack:
            for adapter in host.adapters.installed().values():
                if not adapter.merged:
                    stack.enter_context(adapter.copied())
            yield


class FrozenCopy(PolicyReference):
    """A copy of the policy as it was at the start; costs its memory once more, in checkpoints too."""

    twin: PairCaptioner

    def connect(self, host: PairCaptioner) -> None:
        if host.net is None:
            raise ConfigError(f"{type(host).__name__} has no network yet, so there is nothing to copy")
        trainer, host._trainer = host._trainer, None
        addons = host._modules.pop(AUX, None)
        try:
            self.twin = copy.deepcopy(host)
        finally:
            host._trainer = trainer
            if addons is not None:
                host._modules[AUX] = addons
        self.twin.requires_grad_(False)

    @torch.no_grad()
    def log_probs(self, step: TrainingStep, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        self.twin.eval()  # Lightning sets everything to training
        features = self.twin.encode(step.batch) if encoding_is_trained(step.features) else step.features
        return self.twin.log_probs(features, tokens, mask)


class MovingAverage(FrozenCopy):
    """A copy that follows the policy slowly, so that the policy may go farther than its start allows.

    With ``decay`` 0 and ``every`` 512 the copy is replaced every 512 steps (TRL's ``sync_ref_model``).

    Args:
        decay: share of the copy that an update leaves as it was.
        every: optimizer steps between updates.

    Raises:
        ConfigError: the share is not between 0 and 1, or the steps are none.
    """

    steps: Tensor

    def __init__(self, decay: float = 0.999, every: int = 1) -> None:
        super().__init__()
        if not 0 <= decay <= 1:
            raise ConfigError(f"decay is {decay}; expected a share between 0 and 1")
        if every < 1:
            raise ConfigError(f"every is {every}; expected at least one step between updates")
        self.decay, self.every = decay, every
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def follow(self, host: Any) -> None:
        taken = host.trainer.global_step
        if taken // self.every == int(self.steps) // self.every:
            return
        self.steps.fill_(taken)
        policy = dict(host.named_parameters())
        for path, parameter in self.twin.named_parameters():
            if policy[path].requires_grad:
                if parameter.dtype in (torch.bfloat16, torch.float16):
                    raise ConfigError(
                        f"a MovingAverage of weights in {parameter.dtype} stands still, since steps of 1 - decay are "
                        "rounded away; train with precision bf16-mixed, or use another reference"
                    )
                parameter.lerp_(policy[path].to(parameter.dtype), 1 - self.decay)
        # running statistics are averages already
        statistics = dict(host.named_buffers())
        for path, buffer in self.twin.named_buffers():
            buffer.copy_(statistics[path])


class NoReference(ReferencePolicy):
    """No reference policy: every caption scores 0 under it. For SimPO, CPO and ORPO, which compare without one."""

    def score(self, step: TrainingStep, tokens: Tensor, mask: Tensor) -> Tensor:
        return torch.zeros(tokens.shape[:2], device=tokens.device)
