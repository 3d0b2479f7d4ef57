"""Batched greedy decoding with any network that has a ``step``, and the interfaces of all decoding strategies.

The network keeps a state, such as a KV cache, so that each step computes one token per caption; finished captions leave
the batch. :func:`greedy_uncached` recomputes every prefix; both must return equal captions.

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
    """State in which the prefixes of a pair share its memory, so that beam search never copies it."""

    def reorder(self, rows: Tensor, pairs: Tensor) -> Any:
        """State of selected prefixes.

        Args:
            rows: indices of the prefixes ``(P' * beams,)``; those of a pair are contiguous.
            pairs: indices of their pairs ``(P',)``, each once.
        """


def select_rows(state: Any, rows: Tensor) -> Any:
    """Select rows of a state, by its ``select``, or by indexing each of its tensors.

    Args:
        state: tensor, list, tuple, dict, dataclass or other object with tensors, possibly nested.
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
    """Interface of a captioner's network."""

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
        ids: token ids of each caption, with the end token if it was generated.
        mean_log_probs: mean log-probability per token of each caption.
    """

    ids: list[list[int]]
    mean_log_probs: list[float]


def never_generated_ids(special: SpecialIds, device: torch.device) -> Tensor:
    """Ids that are never generated, as a tensor on the device, so that they are not copied at every step."""
    return torch.tensor(special.suppress_tokens, dtype=torch.long, device=device)


def next_log_probs(logits: Tensor, never_ids: Tensor) -> Tensor:
    """Log-probabilities of the next token, minus infinity for ids that are never generated.

    They are masked after the softmax, so that generated captions have the same log-probability with teacher forcing.
    """
    return logits.float().log_softmax(-1).index_fill_(-1, never_ids, float("-inf"))


@torch.no_grad()
def greedy(net: CaptionNet, features: PairFeatures, max_length: int, special: SpecialIds = DEFAULT_SPECIALS) -> Decoded:
    """Greedy decoding of one caption per pair, of at most ``max_length`` tokens, including the end token."""
    state = net.start(features)
    device = features.memory.device
    num_pairs = len(features)
    rows = torch.arange(num_pairs, device=device)  # unfinished pairs
    tokens = torch.full((num_pairs,), special.bos, dtype=torch.long, device=device)
    end_ids, never_ids = torch.tensor(special.ends, device=device), never_generated_ids(special, device)
    ids = torch.full((max_length, num_pairs), special.pad, dtype=torch.long, device=device)
    log_probs = torch.zeros(max_length, num_pairs, dtype=torch.float32, device=device)
    lengths = torch.full((num_pairs,), max_length, dtype=torch.long, device=device)
    for position in range(max_length):
        best = next_log_probs(net.step(state, tokens), never_ids).max(-1)
        tokens = best.indices
        ids[position].index_copy_(0, rows, tokens)
        log_probs[position].index_copy_(0, rows, best.values)
        is_unfinished = (tokens[:, None] != end_ids).all(1)
        # one synchronisation with the device per step
        num_unfinished = int(is_unfinished.sum())
        if num_unfinished < len(rows):
            lengths[rows[~is_unfinished]] = position + 1
            if num_unfinished == 0:
                break
            if position + 1 < max_length:
                rows, tokens = rows[is_unfinished], tokens[is_unfinished]
                state = select_rows(state, is_unfinished.nonzero()[:, 0])
    return decoded(ids.T, lengths, log_probs.sum(0))


@torch.no_grad()
def greedy_uncached(
    net: CaptionNet, features: PairFeatures, max_length: int, special: SpecialIds = DEFAULT_SPECIALS
) -> Decoded:
    """Greedy decoding without a KV cache: every step runs the whole decoder over the prefixes of all pairs."""
    num_pairs, device = len(features), features.memory.device
    tokens = torch.full((num_pairs, 1, 1), special.bos, dtype=torch.long, device=device)
    sums = torch.zeros(num_pairs, dtype=torch.float32, device=device)
    lengths = torch.zeros(num_pairs, dtype=torch.long, device=device)
    is_unfinished = torch.ones(num_pairs, dtype=torch.bool, device=device)
    end_ids, never_ids = torch.tensor(special.ends, device=device), never_generated_ids(special, device)
    for _ in range(max_length):
        best = next_log_probs(net.logits(features, tokens)[:, 0, -1], never_ids).max(-1)
        next_tokens = torch.where(is_unfinished, best.indices, special.pad)
        sums += torch.where(is_unfinished, best.values, 0.0)
        lengths += is_unfinished
        tokens = torch.cat([tokens, next_tokens[:, None, None]], -1)
        is_unfinished = is_unfinished & ~torch.isin(next_tokens, end_ids)
        if not bool(is_unfinished.any()):
            break
    return decoded(tokens[:, 0, 1:], lengths, sums)


def decoded(ids: Tensor, lengths: Tensor, sums: Tensor) -> Decoded:
    """Captions from padded ids ``(N, T)``, their ``lengths (N,)`` and summed log-probabilities ``(N,)``."""
    return Decoded(
        ids=[row[:length] for row, length in zip(ids.tolist(), lengths.tolist(), strict=True)],
        mean_log_probs=(sums / lengths.clamp(min=1)).tolist(),
    )
