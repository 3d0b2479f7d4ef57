"""Batched greedy decoding of any network with a ``step``, and the interfaces that all decoding shares.

The network caches computations in a state, so that a step costs one token; rows with an end token leave the batch.
:func:`greedy_uncached` recomputes every prefix and is the reference that the cached path must equal token for token.
Beam search is in ``nn/decoding/beam_search.py``, sampling in ``nn/decoding/sampling.py``.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from lightning_idc.images.types import PairFeatures
from lightning_idc.nn.vocabulary import SpecialIds

DEFAULT_SPECIALS = SpecialIds()
NEVER_GENERATED = DEFAULT_SPECIALS.suppress_tokens


@runtime_checkable
class DecodingState(Protocol):
    """State with its own selection of rows, for tensors that are not all batched along dimension 0."""

    def select(self, rows: Tensor) -> Any:
        """State of selected rows, ``(M,)`` int64; rows may repeat."""


@runtime_checkable
class BeamState(Protocol):
    """State whose prefixes of one pair share the memory of the pair, so that beam search never copies it."""

    def reorder(self, rows: Tensor, pairs: Tensor) -> Any:
        """State of selected rows ``(P' * beams,)``, those of a pair together, and of their pairs ``(P',)``, each once.

        Both are indices into the current ones.
        """


def select_rows(state: Any, rows: Tensor) -> Any:
    """State of selected rows: by its ``select``, or row by row of each tensor in it.

    Args:
        state: tensor, list, tuple, dict, dataclass or other object with tensors, at any depth.
        rows: ``(M,)`` int64; rows may repeat.

    Example:
        >>> select_rows({"hidden": torch.tensor([[1.0], [2.0]])}, torch.tensor([1, 1]))["hidden"].tolist()
        [[2.0], [2.0]]
    """
    if isinstance(state, DecodingState) and not isinstance(state, Tensor):
        return state.select(rows)
    if isinstance(state, Tensor):
        return state[rows]
    if isinstance(state, (list, tuple)):
        values = [select_rows(value, rows) for value in state]
        return type(state)(*values) if isinstance(state, tuple) and type(state) is not tuple else type(state)(values)
    if isinstance(state, dict):
        return {name: select_rows(value, rows) for name, value in state.items()}
    if isinstance(state, (bool, int, float, str, bytes, type(None))):
        return state
    selected = copy.copy(state)
    names = [field.name for field in fields(state)] if is_dataclass(state) else list(vars(state))
    for name in names:
        setattr(selected, name, select_rows(getattr(state, name), rows))
    return selected


class CaptionNet(Protocol):
    """Interface of the network of a small captioner."""

    def encode(self, images: Tensor) -> PairFeatures:
        """Features of uint8 images ``(B, 2, 3, H, W)``."""

    def logits(self, features: PairFeatures, tokens: Tensor) -> Tensor:
        """Logits ``(B, K, T, V)`` of the token after each of ``tokens (B, K, T)``."""

    def start(self, features: PairFeatures) -> Any:
        """State before the first token, one row per pair, for :func:`select_rows`."""

    def step(self, state: Any, tokens: Tensor) -> Tensor:
        """Logits ``(N, V)`` after one more token ``(N,)`` per row; advances the state, in place."""


@dataclass(slots=True)
class Decoded:
    """Generated captions.

    Args:
        ids: token ids per pair, with the end token where it was generated.
        mean_log_probs: mean log-probability per token, per pair.
    """

    ids: list[list[int]]
    mean_log_probs: list[float]


def never_generated_ids(special: SpecialIds, device: torch.device) -> Tensor:
    """Ids that are never generated, on the device; a list would be copied at every step."""
    return torch.tensor(special.suppress_tokens, dtype=torch.long, device=device)


def next_log_probs(logits: Tensor, never: Tensor) -> Tensor:
    """Log-probabilities over all tokens, with ids that are never generated set to minus infinity.

    They are masked after normalising, so that the log-probability of a generated caption is its teacher-forced one.
    """
    return logits.float().log_softmax(-1).index_fill_(-1, never, float("-inf"))


@torch.no_grad()
def greedy(net: CaptionNet, features: PairFeatures, max_length: int, special: SpecialIds = DEFAULT_SPECIALS) -> Decoded:
    """Most likely next token each time, at most ``max_length`` tokens with the end token."""
    state = net.start(features)
    device = features.memory.device
    count = len(features)
    rows = torch.arange(count, device=device)
    tokens = torch.full((count,), special.bos, dtype=torch.long, device=device)
    ends, never = torch.tensor(special.ends, device=device), never_generated_ids(special, device)
    ids = torch.full((max_length, count), special.pad, dtype=torch.long, device=device)
    log_probs = torch.zeros(max_length, count, dtype=torch.float32, device=device)
    lengths = torch.full((count,), max_length, dtype=torch.long, device=device)
    for position in range(max_length):
        best = next_log_probs(net.step(state, tokens), never).max(-1)
        tokens = best.indices
        ids[position].index_copy_(0, rows, tokens)
        log_probs[position].index_copy_(0, rows, best.values)
        going = (tokens[:, None] != ends).all(1)
        # one synchronisation with the device per step
        alive = int(going.sum())
        if alive < len(rows):
            lengths[rows[~going]] = position + 1
            if alive == 0:
                break
            if position + 1 < max_length:
                rows, tokens = rows[going], tokens[going]
                state = select_rows(state, going.nonzero()[:, 0])
    return decoded(ids.T, lengths, log_probs.sum(0))


@torch.no_grad()
def greedy_uncached(
    net: CaptionNet, features: PairFeatures, max_length: int, special: SpecialIds = DEFAULT_SPECIALS
) -> Decoded:
    """As :func:`greedy`, but every step runs the whole decoder over the whole prefix of all pairs."""
    count, device = len(features), features.memory.device
    tokens = torch.full((count, 1, 1), special.bos, dtype=torch.long, device=device)
    sums = torch.zeros(count, dtype=torch.float32, device=device)
    lengths = torch.zeros(count, dtype=torch.long, device=device)
    going = torch.ones(count, dtype=torch.bool, device=device)
    ends, never = torch.tensor(special.ends, device=device), never_generated_ids(special, device)
    for _ in range(max_length):
        best = next_log_probs(net.logits(features, tokens)[:, 0, -1], never).max(-1)
        chosen = torch.where(going, best.indices, special.pad)
        sums += torch.where(going, best.values, 0.0)
        lengths += going
        tokens = torch.cat([tokens, chosen[:, None, None]], -1)
        going = going & ~torch.isin(chosen, ends)
        if not bool(going.any()):
            break
    return decoded(tokens[:, 0, 1:], lengths, sums)


def decoded(ids: Tensor, lengths: Tensor, sums: Tensor) -> Decoded:
    """Captions of ids ``(N, T)`` of ``lengths (N,)``, with summed log-probabilities ``(N,)``."""
    counts = lengths.tolist()
    return Decoded(
        [row[:count] for row, count in zip(ids.tolist(), counts, strict=True)],
        (sums / lengths.clamp(min=1)).tolist(),
    )
