"""BertAdam, the optimizer of the authors' second stage: Adam as BERT's first code had it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightning_idc.utils.bounds import NonNegativeFloat, ShareBelowOne, check_arguments
from lightning_idc.utils.errors import ConfigError


class BertAdam(Optimizer):
    """Adam without bias correction, with decoupled weight decay and the gradient of each parameter clipped separately.

    Without the correction the first steps are about three times as long as Adam's (0.1 / sqrt(0.001), with the betas
    below), which its warm-up makes up for.

    Args:
        params: parameters or groups of them.
        lr: learning rate.
        betas: decay of the running means of gradients and of their squares.
        eps: constant added to the root of the mean square.
        weight_decay: decoupled weight decay.
        max_grad_norm: maximum norm of the gradient of one parameter; 0 for none.
        half_precision: names of groups whose matrices and running means are stored and updated in float16, as the code
            of CLIP4IDC does with CLIP: squares of gradients below 5.4e-3 are 0 then (below 1.2e-3 with a second beta of
            0.98), so that at a rate of 1e-7 these weights move as at a rate ten or a hundred times as high.

    Raises:
        ConfigError: an argument is out of range, or a group is unknown.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: NonNegativeFloat = 5e-5,
        betas: tuple[ShareBelowOne, ShareBelowOne] = (0.9, 0.999),
        eps: NonNegativeFloat = 1e-6,
        weight_decay: NonNegativeFloat = 0.01,
        max_grad_norm: float = 1.0,
        half_precision: Sequence[str] = (),
    ) -> None:
        check_arguments(BertAdam.__init__, locals())
        settings = {
            "lr": lr,
            "betas": tuple(betas),
            "eps": eps,
            "weight_decay": weight_decay,
            "max_grad_norm": max_grad_norm,
        }
        super().__init__(params, settings)
        self.half_precision = tuple(half_precision)
        unknown = set(half_precision) - {str(group.get("name")).partition(".")[0] for group in self.param_groups}
        if unknown:
            raise ConfigError(f"half_precision names {min(unknown)!r}, which is not a group of parameters")

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:  # type: ignore[override]
        """One step over all parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            is_half = str(group.get("name")).partition(".")[0] in self.half_precision
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                gradient = parameter.grad
                if group["max_grad_norm"] > 0:
                    # as torch's clip_grad_norm_ has it; before it is cut to 16 bits, which a large one would exceed
                    gradient = gradient * (group["max_grad_norm"] / (gradient.norm() + 1e-6)).clamp(max=1.0)
                dtype = torch.float16 if is_half and parameter.dim() > 1 else parameter.dtype
                state, gradient, value = self.state[parameter], gradient.to(dtype), parameter.to(dtype)
                if not state:
                    state["mean"], state["mean_square"] = torch.zeros_like(value), torch.zeros_like(value)
                # torch loads the states of a checkpoint in the type of the parameter, which changes no 16-bit number
                state.update({name: state[name].to(dtype) for name in ("mean", "mean_square")})
                state["mean"].lerp_(gradient, 1 - beta1)
                state["mean_square"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
                # kept in 16 bits, computed in 32: processors that flush small numbers to 0 would divide by eps = 0
                full_dtype = parameter.dtype
                update = state["mean"].to(full_dtype) / (state["mean_square"].to(full_dtype).sqrt() + group["eps"])
                updated = value.to(full_dtype) - group["lr"] * (update + group["weight_decay"] * value.to(full_dtype))
                parameter.copy_(updated.to(dtype))
        return loss
