"""Adapters in stock vision towers, by forward hooks.

:class:`FeatureRewriter` reads hidden states at several depths and replaces the output of the tower, as MDP does
(M3Diff, section 4). :class:`BlockRewriter` replaces the states after each of several layers, as a stateful encoder
does.
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
BlockRewrite = Callable[[int, Tensor], Tensor]
"""Maps the index of a layer and the states ``(B, 2, L, D)`` after it to new states of the same shape."""


class TowerHooks:
    """Hooks on a vision tower, active only within :meth:`encoding`."""

    def __init__(self) -> None:
        self.enabled = True
        """Whether states are replaced."""
        self._positions_per_pair: list[int] = []

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

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Context in which no states are replaced."""
        self.enabled = False
        try:
            yield
        finally:
            self.enabled = True


class FeatureRewriter(TowerHooks):
    """Reads the states at several depths of a vision tower and replaces its output.

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
        super().__init__()
        self.rewrite = rewrite
        self.inner_layers = list(layers[:-1])
        self.hidden_states: dict[int, Tensor] = {}
        """Outputs of the inner layers by depth, within :meth:`encoding`."""
        for depth in self.inner_layers:
            blocks[depth - 1].register_forward_hook(partial(self._record, depth))
        if gate_is_output:
            gate.register_forward_hook(self._replace_output)
        else:
            gate.register_forward_pre_hook(self._replace_input)

    @contextmanager
    def encoding(self, positions_per_pair: Sequence[int]) -> Iterator[None]:
        """As in :class:`TowerHooks`; states of the inner layers are not kept afterwards."""
        try:
            with super().encoding(positions_per_pair):
                yield
        finally:
            self.hidden_states.clear()

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
            raise ConfigError("MDP rewrites the features of pairs; call encode of the captioner instead of the model")
        depths = [*(self.hidden_states[depth] for depth in self.inner_layers), last]
        return rewrite_by_pair(self.rewrite, depths, self._positions_per_pair)


class BlockRewriter(TowerHooks):
    """Replaces the states after each of several layers of a vision tower.

    Args:
        blocks: layers of the tower.
        gate: module between the tower and the language model, such as a projector.
        gate_is_output: whether the features are the output of ``gate``; otherwise they are its input.
        layers: depths after which states are replaced, from 1, in increasing order.
        depth: number of layers before the gate; the states after the last one are replaced at the gate, as some
            models take them from a record that hooks do not change.
        rewrite: function that computes the new states.
    """

    def __init__(
        self,
        blocks: nn.ModuleList,
        gate: nn.Module,
        gate_is_output: bool,
        layers: Sequence[int],
        depth: int,
        rewrite: BlockRewrite,
    ) -> None:
        super().__init__()
        self.rewrite = rewrite
        for index, layer in enumerate(layers):
            if layer < depth:
                blocks[layer - 1].register_forward_hook(partial(self._replace_block, index))
            elif gate_is_output:
                gate.register_forward_hook(partial(self._replace_output, index))
            else:
                gate.register_forward_pre_hook(partial(self._replace_input, index))

    def _replace_block(self, index: int, block: nn.Module, inputs: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (self._rewritten(index, output[0]), *output[1:])
        return self._rewritten(index, output)

    def _replace_input(self, index: int, gate: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (self._rewritten(index, inputs[0]), *inputs[1:])

    def _replace_output(self, index: int, gate: nn.Module, inputs: Any, output: Any) -> Any:
        output.last_hidden_state = self._rewritten(index, output.last_hidden_state)
        return output

    def _rewritten(self, index: int, states: Tensor) -> Tensor:
        if not self.enabled:
            return states
        if not self._positions_per_pair:
            raise ConfigError(
                "StatefulEncoder reads pairs of images; call encode of the captioner instead of the model"
            )
        return rewrite_by_pair(lambda batch: self.rewrite(index, batch[0]), [states], self._positions_per_pair)


def rewrite_by_pair(rewrite: FeatureRewrite, depths: list[Tensor], positions_per_pair: Sequence[int]) -> Tensor:
    """New states of a tower, in the shape of the last of ``depths``.

    Args:
        rewrite: function of the states ``(B, 2, L, D)`` of every depth; pairs of equal size form one batch.
        depths: states of the tower, of any shape ``(..., D)``.
        positions_per_pair: positions of the tower for each pair, in any common unit.
    """
    # a row is an image, a tile or a patch, depending on the family; the first image's rows always come first
    rows = [states.reshape(-1, states.shape[-1]) for states in depths]  # (N, D) per depth
    rows_per_position = len(rows[-1]) // sum(positions_per_pair)
    sizes = [rows_per_position * positions for positions in positions_per_pair]
    if len(set(sizes)) == 1:
        pairs = [depth.unflatten(0, (len(sizes), 2, -1)) for depth in rows]  # (N, D) -> (B, 2, L, D)
        return rewrite(pairs).reshape(depths[-1].shape)
    by_pair = [depth.split(sizes) for depth in rows]
    rewritten: dict[int, Tensor] = {}
    for size in sorted(set(sizes)):
        same_size = [pair for pair, other in enumerate(sizes) if other == size]
        batch = [torch.stack([pieces[pair] for pair in same_size]).unflatten(1, (2, -1)) for pieces in by_pair]
        rewritten |= dict(zip(same_size, rewrite(batch).flatten(1, 2), strict=True))
    return torch.cat([rewritten[pair] for pair in range(len(sizes))]).reshape(depths[-1].shape)
