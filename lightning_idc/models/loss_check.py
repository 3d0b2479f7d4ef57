"""Checks that stop a training whose loss or weights are not finite before a checkpoint replaces a good one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from lightning_idc.models.distributed import all_gather_object
from lightning_idc.utils.errors import CheckpointError, ConfigError


class LossCheck:
    """Raises at a NaN or infinite loss.

    On an accelerator the check runs one step late, so that no step waits for the device.
    """

    def __init__(self) -> None:
        self._last: tuple[Tensor, Sequence[str]] | None = None
        self._is_finite: _IsFinite | None = None

    def update(self, loss: Tensor, ids: Sequence[str]) -> None:
        """Check the loss of a step, on an accelerator that of the step before.

        Args:
            loss: a scalar.
            ids: names of the pairs of the batch.

        Raises:
            ConfigError: this loss, or on an accelerator the one before, is not finite.
        """
        previous, self._last = self._last, (loss.detach(), ids)
        if loss.device.type == "cpu":
            self.check()
        elif loss.device.type == "cuda":
            # the copy to the host starts now and is read one step later, when it has long finished
            is_finite, self._is_finite = self._is_finite, _IsFinite(loss.detach())
            if previous is not None and is_finite is not None and not is_finite.read():
                _check_finite(*previous)
        elif previous is not None:
            _check_finite(*previous)

    def check(self) -> None:
        """Check the last loss now, for example before a checkpoint is written.

        Raises:
            ConfigError: the loss is not finite.
        """
        if self._last is not None:
            _check_finite(*self._last)


class _IsFinite:
    """Asynchronous copy, from a GPU to the host, of whether a number is finite."""

    def __init__(self, value: Tensor) -> None:
        self._result = torch.isfinite(value).to("cpu", non_blocking=True)
        self._copied = torch.cuda.Event()
        self._copied.record()

    def read(self) -> bool:
        self._copied.synchronize()
        return bool(self._result)


def _check_finite(loss: Tensor, ids: Sequence[str]) -> None:
    if not torch.isfinite(loss):
        where = f"on the pairs {', '.join(ids[:8])}" if ids else "on a batch that names no pairs"
        raise ConfigError(
            f"the training loss became {loss.item()} {where}; nothing was saved after it. Lower the learning rate, "
            "clip gradients (trainer.gradient_clip_val) or look at the data there"
        )


def check_weights(module: nn.Module) -> None:
    """Check that all weights are finite before a checkpoint is written; all processes must call this.

    Raises:
        CheckpointError: a parameter holds NaN or infinity, on this process or another one.
    """
    names = [name for name in all_gather_object(_first_nonfinite(module)) if name is not None]
    if names:
        raise CheckpointError(
            f"the weights {names[0]!r} are not finite, so they are not saved; earlier checkpoints are complete. Lower "
            "the learning rate or clip gradients (trainer.gradient_clip_val), and resume from the newest one"
        )


def _first_nonfinite(module: nn.Module) -> str | None:
    for name, parameter in module.named_parameters():
        for values in _plain_tensors(parameter.data):
            if values.is_floating_point() and not torch.isfinite(values).all():
                return name
    return None


def _plain_tensors(values: Tensor) -> Iterator[Tensor]:
    """Tensors that a weight is stored in: its shard of this process, or quantized values with their scales."""
    if not is_traceable_wrapper_subclass(values):
        yield values
        return
    parts = [getattr(values, name) for name in values.__tensor_flatten__()[0]]
    for part in parts:
        if isinstance(part, Tensor):  # a sharded weight names its mesh of devices as well
            yield from _plain_tensors(part)
