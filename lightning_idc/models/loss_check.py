"""Checks that stop a training whose loss or weights are not finite before a checkpoint replaces a good one."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from lightning_idc.models.distributed import all_gather_object
from lightning_idc.utils.errors import CheckpointError, ConfigError


class FiniteCheck(ABC):
    """Raises at a NaN or infinite number of a step.

    On an accelerator the check runs one step late, so that no step waits for the device.
    """

    def __init__(self) -> None:
        self.enabled = True
        """Whether numbers are checked; the callback SkipNonFiniteSteps turns this off."""
        self._last: tuple[Tensor, Sequence[str]] | None = None
        self._is_finite: _IsFinite | None = None

    @abstractmethod
    def message(self, value: float, about: Sequence[str]) -> str:
        """Message of the error."""

    def update(self, value: Tensor, about: Sequence[str]) -> None:
        """Check the number of a step, on an accelerator that of the step before.

        Args:
            value: a scalar.
            about: names for the message.

        Raises:
            ConfigError: this number, or on an accelerator the one before, is not finite.
        """
        if not self.enabled:
            return
        previous, self._last = self._last, (value.detach(), about)
        if value.device.type == "cpu":
            self.check()
        elif value.device.type == "cuda":
            # the copy to the host starts now and is read one step later, when it has long finished
            is_finite, self._is_finite = self._is_finite, _IsFinite(value.detach())
            if previous is not None and is_finite is not None and not is_finite.read():
                self._raise_unless_finite(*previous)
        elif previous is not None:
            self._raise_unless_finite(*previous)

    def check(self) -> None:
        """Check the last number now, for example before a checkpoint is written.

        Raises:
            ConfigError: the loss is not finite.
        """
        if self._last is not None and self.enabled:
            self._raise_unless_finite(*self._last)

    def _raise_unless_finite(self, value: Tensor, about: Sequence[str]) -> None:
        if not torch.isfinite(value):
            raise ConfigError(self.message(value.item(), about))


class LossCheck(FiniteCheck):
    """Raises at a loss that is not finite; see :class:`FiniteCheck`."""

    def message(self, value: float, about: Sequence[str]) -> str:
        where = f"on the pairs {', '.join(about[:8])}" if about else "on a batch that names no pairs"
        return (
            f"the training loss became {value} {where}; nothing was saved after it. Lower the learning rate, "
            "clip gradients (trainer.gradient_clip_val), look at the data there, or skip such steps with the callback "
            "SkipNonFiniteSteps"
        )


class GradientCheck(FiniteCheck):
    """Raises at gradients whose norm is not finite; see :class:`FiniteCheck`."""

    def message(self, value: float, about: Sequence[str]) -> str:
        return (
            f"the norm of the gradients became {value} in {about[0]}; nothing was saved after it. Lower the learning "
            "rate, or skip such steps with the callback SkipNonFiniteSteps"
        )


class _IsFinite:
    """Asynchronous copy, from a GPU to the host, of whether a number is finite."""

    def __init__(self, value: Tensor) -> None:
        self._result = torch.isfinite(value).to("cpu", non_blocking=True)
        self._copied = torch.cuda.Event()
        self._copied.record()

    def read(self) -> bool:
        self._copied.synchronize()
        return bool(self._result)


def gradient_norm(optimizer: torch.optim.Optimizer) -> Tensor:
    """Norm of the gradients of an optimizer, those of this process where they are sharded; a scalar.

    It is in float32, and in float64 if a gradient is. It is infinite where the square of a gradient is too large for
    that dtype, because the second moments of Adam would be.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    gradients = [part for p in parameters if p.grad is not None for part in _plain_tensors(p.grad)]
    if not gradients:
        return torch.zeros(())
    is_double = any(gradient.dtype == torch.float64 for gradient in gradients)
    norms = torch._foreach_norm(gradients, 2, dtype=torch.float64 if is_double else torch.float32)
    return torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))


def nonfinite_values(module: nn.Module, optimizers: Collection[torch.optim.Optimizer] = ()) -> list[str]:
    """Names of the parameters, buffers, optimizer states and settings of this process that hold NaN or infinity.

    Args:
        module: module whose checkpoint would hold them.
        optimizers: its optimizers.
    """
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    states = (
        (f"{state} of {names.get(id(parameter), 'a parameter')}", value)
        for optimizer in optimizers
        for parameter, values in optimizer.state.items()
        for state, value in values.items()
        if isinstance(value, Tensor)
    )
    values = chain(module.named_parameters(), _persistent_buffers(module), states)
    nonfinite = [name for name, value in values if not _is_finite(value.detach())]
    # such as a learning rate that is NaN, with which a resumed run would fail again
    groups = chain.from_iterable(optimizer.param_groups for optimizer in optimizers)
    settings = chain.from_iterable(group.items() for group in groups)
    return nonfinite + [name for name, value in settings if isinstance(value, float) and not math.isfinite(value)]


def _persistent_buffers(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for path, part in module.named_modules():
        for name, buffer in part.named_buffers(prefix=path, recurse=False):
            if name.rpartition(".")[2] not in part._non_persistent_buffers_set:
                yield name, buffer


def _is_finite(value: Tensor) -> bool:
    return all(
        bool(torch.isfinite(part).all())
        for part in _plain_tensors(value)
        if (part.is_floating_point() or part.is_complex()) and part.numel()
    )


def check_weights(
    module: nn.Module,
    optimizers: Collection[torch.optim.Optimizer] = (),
    averages: Mapping[str, Any] | None = None,
    exempt: Collection[str] = (),
) -> None:
    """Check that all weights are finite before a checkpoint is written; all processes must call this.

    Args:
        module: module whose parameters and buffers are written.
        optimizers: optimizers whose states are written.
        averages: averaged weights that are written in place of those of the module.
        exempt: names of values that were not finite when the training began, such as masks.

    Raises:
        CheckpointError: a value is NaN or infinite, on this process or another one.
    """
    names = nonfinite_values(module, optimizers)
    averages = averages or {}
    names += [name for name, value in averages.items() if isinstance(value, Tensor) and not _is_finite(value)]
    first = next((name for name in names if name not in exempt), None)
    if failures := [name for name in all_gather_object(first) if name is not None]:
        raise CheckpointError(
            f"{failures[0]!r} is not finite, so nothing is saved; earlier checkpoints are complete. "
            "Lower the learning rate or clip gradients (trainer.gradient_clip_val), and resume from the newest one"
        )


def _plain_tensors(values: Tensor) -> Iterator[Tensor]:
    """Tensors that a weight is stored in: its shard of this process, or quantized values with their scales."""
    if not is_traceable_wrapper_subclass(values):
        yield values
        return
    parts = [getattr(values, name) for name in values.__tensor_flatten__()[0]]
    for part in parts:
        if isinstance(part, Tensor):  # a sharded weight names its mesh of devices as well
            yield from _plain_tensors(part)
