"""BertAdam, the optimizer of the authors' second stage: Adam as in the original code of BERT."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightning_idc.utils.bounds import NonNegativeFloat, ShareBelowOne, check_arguments
from lightning_idc.utils.errors import ConfigError


class BertAdam(Optimizer):
    """Adam without bias correction, with decoupled weight decay and with the gradient of each parameter clipped.

    Without bias correction the first steps are about three times as large as Adam's (0.1 / sqrt(0.001) with the default
    betas); the warm-up compensates for that.

    Args:
        params: parameters or parameter groups.
        lr: learning rate.
        betas: decay rates of the running means of gradients and of squared gradients.
        eps: constant added to the root of the mean square.
        weight_decay: decoupled weight decay.
        max_grad_norm: maximum gradient norm of each parameter; 0 for no clipping.
        half_precision: names of parameter groups whose matrices and running means are stored in float16, as in the code
            of CLIP4IDC. Squares of gradients below 5.4e-3 then underflow to 0 (below 1.2e-3 with a second beta of
            0.98), so that these weights take steps ten to a hundred times as large as the learning rate suggests.

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
            raise ConfigError(f"half_precision has {min(unknown)!r}, which is not the name of a parameter group")

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
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
                    # as in clip_grad_norm_, and before the conversion to 16 bits, in which large gradients overflow
                    gradient = gradient * (group["max_grad_norm"] / (gradient.norm() + 1e-6)).clamp(max=1.0)
                dtype = torch.float16 if is_half and parameter.dim() > 1 else parameter.dtype
                state, gradient, value = self.state[parameter], gradient.to(dtype), parameter.to(dtype)
                if not state:
                    state["mean"], state["mean_square"] = torch.zeros_like(value), torch.zeros_like(value)
                # load_state_dict converts the state to the type of the parameter, which is exact for 16-bit numbers
                state.update({name: state[name].to(dtype) for name in ("mean", "mean_square")})
                state["mean"].lerp_(gradient, 1 - beta1)
                state["mean_square"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
                # stored in 16 bits but computed in 32, where eps is not flushed to 0
                full_dtype = parameter.dtype
                update = state["mean"].to(full_dtype) / (state["mean_square"].to(full_dtype).sqrt() + group["eps"])
                updated = value.to(full_dtype) - group["lr"] * (update + group["weight_decay"] * value.to(full_dtype))
                parameter.copy_(updated.to(dtype))
        return loss
