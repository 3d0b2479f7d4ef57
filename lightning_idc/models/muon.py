"""MuonAdamW: Muon (Jordan et al. 2024) for matrices, and AdamW for biases, norms and everything else.

1. `MuonAdamW.step`: average the gradient of each matrix over the steps, with Nesterov's look-ahead;
2. `orthogonalized`: set all singular values of the average to about 1, by Newton-Schulz iterations;
3. move each matrix by that, as far as AdamW would, so that its learning rates carry over (`step_size`);
4. all other parameters: the step of AdamW.

`torch.optim.Muon` takes matrices only, and computes in bfloat16, as timm's does. On a CPU without instructions for it,
that takes 20 to 30 times as long as float32 (measured with AVX2, without oneDNN), so this class computes in float32.
Matrices of one shape, ``(N, R, C)``, are computed together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.adamw import adamw

from lightning_idc.utils.bounds import NonNegativeFloat, PositiveInt, ShareBelowOne, check_arguments

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the polynomial x -> a x + b x^3 + c x^5, which takes singular values quickly towards 1, and leaves them near 1."""
MATCHED_TO_ADAMW = 0.2
"""Root mean square of the updates of AdamW, about as in "Muon is scalable for LLM training" (Liu et al. 2025)."""


def orthogonalized(matrices: Tensor, iterations: int = 5) -> Tensor:
    """Matrices ``(N, R, C)`` with the same singular vectors, and singular values between about 0.7 and 1.2.

    Args:
        matrices: matrices in the precision of the computation; zeros stay zeros.
        iterations: Newton-Schulz iterations.

    Example:
        >>> torch.linalg.svdvals(orthogonalized(torch.diag(torch.tensor([2.0, 1.0]))[None]))
        tensor([[1.1142, 0.6888]])
    """
    a, b, c = COEFFICIENTS
    wide = matrices.shape[1] <= matrices.shape[2]
    x = matrices if wide else matrices.mT
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)  # no singular value is above 1
    for _ in range(iterations):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x if wide else x.mT


def step_size(rows: int, columns: int) -> float:
    """Factor with which an orthogonal matrix has the root mean square of an update of AdamW."""
    return MATCHED_TO_ADAMW * max(rows, columns) ** 0.5


class MuonAdamW(Optimizer):
    """Muon for parameters with two dimensions, AdamW for all others.

    A strategy may copy parameters (DDP), but not cut matrices into pieces (FSDP).

    Args:
        params: parameters or parameter groups.
        lr: learning rate of both.
        momentum: weight of the past in the average gradient of a matrix.
        iterations: Newton-Schulz iterations.
        weight_decay: decoupled weight decay of both.
        betas: of AdamW.
        eps: of AdamW.
        fused: whether AdamW updates all its parameters in one call; None lets torch choose.

    Example:
        >>> layer = torch.nn.Linear(4, 8)
        >>> optimizer = MuonAdamW(layer.parameters(), lr=5e-3)
        >>> layer(torch.ones(1, 4)).sum().backward()
        >>> optimizer.step()
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: NonNegativeFloat = 5e-3,
        momentum: ShareBelowOne = 0.95,
        iterations: PositiveInt = 5,
        weight_decay: NonNegativeFloat = 0.01,
        betas: tuple[ShareBelowOne, ShareBelowOne] = (0.9, 0.98),
        eps: NonNegativeFloat = 1e-8,
        fused: bool | None = None,
    ) -> None:
        check_arguments(MuonAdamW.__init__, locals())
        settings = {"lr": lr, "momentum": momentum, "iterations": iterations, "weight_decay": weight_decay}
        super().__init__(params, {**settings, "betas": betas, "eps": eps, "fused": fused})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            values = [value for value in group["params"] if value.grad is not None]
            self._step_matrices([value for value in values if value.ndim == 2], group)
            self._step_others([value for value in values if value.ndim != 2], group)
        return loss

    def _step_matrices(self, matrices: Sequence[Tensor], group: Mapping[str, Any]) -> None:
        lr = float(group["lr"])
        by_shape: dict[torch.Size, list[Tensor]] = {}
        for value in matrices:
            by_shape.setdefault(value.shape, []).append(value)
        for (rows, columns), values in by_shape.items():
            ahead = torch.stack([self._look_ahead(value, group["momentum"]) for value in values])  # (N, R, C)
            updates = orthogonalized(ahead.float(), group["iterations"]).to(ahead.dtype)
            for value, update in zip(values, updates, strict=True):
                value.mul_(1 - lr * group["weight_decay"]).add_(update, alpha=-lr * step_size(rows, columns))

    def _look_ahead(self, value: Tensor, momentum: float) -> Tensor:
        """Update the average gradient of a matrix; the average as it would be after the same gradient again."""
        gradient, state = cast(Tensor, value.grad), self.state[value]
        if not state:
            state["average"] = torch.zeros_like(value)
        return gradient.lerp(state["average"].lerp_(gradient, 1 - momentum), momentum)

    def _step_others(self, values: list[Tensor], group: Mapping[str, Any]) -> None:
        for value in values:
            state = self.state[value]
            if not state:
                # a fused step counts on the device of the parameter
                state["step"] = torch.zeros((), device=value.device if group["fused"] else None)
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(value), torch.zeros_like(value)
        states = [self.state[value] for value in values]
        beta1, beta2 = group["betas"]
        adamw(
            values,
            [cast(Tensor, value.grad) for value in values],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=group["fused"],
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
