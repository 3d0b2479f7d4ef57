"""FeatureRewriter: reads the hidden states of a vision tower and replaces its output, by forward hooks.

This is how MDP (M3Diff, section 4) gets between a stock vision tower and the language model behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lightning_idc.utils.errors import ConfigError

FeatureRewrite = Callable[[list[Tensor]], Tensor]
"""Maps the features ``(B, 2, L, D)`` of every depth, the deepest last, to the new output, ``(B, 2, L, D)``."""


class FeatureRewriter:
    """Hooks on a vision tower, active only within :meth:`encoding`.

    Args:
        blocks: layers of the tower.
        gate: module between the tower and the language model, such as a projector.
        gate_is_output: whether the features are the output of ``gate``; otherwise they are its input.
        layers: depths passed to ``rewrite``, from 1, in increasing order; the last one is the output of the tower.
        rewrite: function that computes the new output of the tower.
    """

    def __init__(
        self,
        blocks: nn.ModuleList,
        gate: nn.Module,
        gate_is_output: bool,
        layers: Sequence[int],
        rewrite: FeatureRewrite,
    ) -> None:
        self.rewrite = rewrite
        self.inner_layers = list(layers[:-1])
        self.enabled = True
        self.hidden_states: dict[int, Tensor] = {}
        """Outputs of the inner layers by depth, within :meth:`encoding`."""
        self._positions_per_pair: list[int] = []
        for depth in self.inner_layers:
            blocks[depth - 1].register_forward_hook(partial(self._record, depth))
        if gate_is_output:
            gate.register_forward_hook(self._replace_output)
        else:
            gate.register_forward_pre_hook(self._replace_input)

    @contextmanager
    def encoding(self, positions_per_pair: Sequence[int]) -> Iterator[None]:
        """Context in which the tower encodes pairs.

        Args:
            positions_per_pair: positions of the tower for each pair, in any common unit.
        """
        self._positions_per_pair = list(positions_per_pair)
        try:
            yield
        finally:
            self._positions_per_pair = []
            self.hidden_states.clear()

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Context in which the output of the tower is not replaced."""
        self.enabled = False
        try:
            yield
        finally:
            self.enabled = True

    def _record(self, depth: int, block: nn.Module, inputs: Any, output: Any) -> None:
        # in the backward pass, activation checkpointing runs the blocks again outside of `encoding`
        if self._positions_per_pair:
            self.hidden_states[depth] = output[0] if isinstance(output, tuple) else output

    def _replace_input(self, gate: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        return (self._rewritten(inputs[0]), *inputs[1:]) if self.enabled else None

    def _replace_output(self, gate: nn.Module, inputs: Any, output: Any) -> Any:
        if self.enabled:
            output.last_hidden_state = self._rewritten(output.last_hidden_state)
        return output

    def _rewritten(self, last: Tensor) -> Tensor:
        if not self._positions_per_pair:
            raise ConfigError("MDP rewrites the features of pairs; call encode of the captioner, not the model itself")
        depths = [*(self.hidden_states[depth] for depth in self.inner_layers), last]
        # a row is an image, a tile or a patch, depending on the family; the first image's rows always come first
        rows = [states.reshape(-1, states.shape[-1]) for states in depths]
        rows_per_position = len(rows[-1]) // sum(self._positions_per_pair)
        sizes = [rows_per_position * positions for positions in self._positions_per_pair]
        return self._rewrite_rows(rows, sizes).reshape(last.shape)

    def _rewrite_rows(self, rows: list[Tensor], sizes: list[int]) -> Tensor:
        """Rewrite the rows ``(N, D)`` of every depth, ``sizes[i]`` of them per pair; equal sizes form one batch."""
        if len(set(sizes)) == 1:
            return self.rewrite([depth.unflatten(0, (len(sizes), 2, -1)) for depth in rows]).flatten(0, 2)
        by_pair = [depth.split(sizes) for depth in rows]
        rewritten: dict[int, Tensor] = {}
        for size in sorted(set(sizes)):
            same_size = [pair for pair, other in enumerate(sizes) if other == size]
            batch = [torch.stack([pieces[pair] for pair in same_size]).unflatten(1, (2, -1)) for pieces in by_pair]
            rewritten |= dict(zip(same_size, self.rewrite(batch).flatten(1, 2), strict=True))
        return torch.cat([rewritten[pair] for pair in range(len(sizes))])
