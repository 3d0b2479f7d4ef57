"""Pre-norm transformer (Vaswani et al. 2017) for image pairs: encoder layers, and a causal decoder with a KV cache.

The K captions of a pair share its memory ``(B, M, D)``, which is never copied: for cross-attention the captions
``(B, K, T, D)`` are merged into queries ``(B, K * T, D)``. N counts captions, P pairs, d is the width of one head.

1. `EncoderLayer`: self-attention and feed-forward over all tokens of a pair,
2. `DecoderLayer`: causal self-attention, cross-attention to the memory, and feed-forward,
3. `Decoder`: all positions at once in training (``forward``), or one token per ``step`` with a `DecoderState`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_idc.nn.attention import attend
from lightning_idc.utils.bounds import PositiveInt, ShareBelowOne, check_arguments
from lightning_idc.utils.errors import ConfigError, DataError

CacheUpdate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Appends keys and values of the newest token, ``(N, heads, 1, d)`` each, to a KV cache and returns all of them."""
CACHE_BLOCK = 16
"""Number of tokens by which the KV cache grows."""


def check_heads(width: PositiveInt, heads: PositiveInt) -> None:
    """Check that the number of heads divides the width.

    Raises:
        ConfigError: the width is not a multiple of the number of heads.
    """
    check_arguments(check_heads, locals())
    if width % heads:
        raise ConfigError(f"heads is {heads} and width {width}; expected a width that is a multiple of heads")


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Reshape ``(B, N, D)`` to ``(B, heads, N, D / heads)``."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def split_step(x: Tensor, parts: int, heads: int) -> tuple[Tensor, ...]:
    """Split ``(B, N, parts * D)`` into ``parts`` tensors ``(B, heads, N, D / heads)``.

    Faster than ``chunk`` and `split_heads` in a decoding step, but with slower gradients.
    """
    return x.unflatten(-1, (parts, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)


def merge_heads(x: Tensor) -> Tensor:
    """Reshape ``(B, heads, N, d)`` to ``(B, N, heads * d)``."""
    return x.transpose(1, 2).flatten(2)


def group_captions(x: Tensor, count: int) -> Tensor:
    """Reshape tokens ``(..., D)`` to queries ``(N / count, count, D)``, so that captions of a pair share its memory."""
    return x if x.shape[1] == count else x.view(-1, count, x.shape[-1])


class FeedForward(nn.Sequential):
    """Two linear layers with a GELU between them, and dropout of the output.

    Hidden activations have no dropout: on a CPU it takes as long as one of the matrix products.
    """

    def __init__(self, width: int, hidden: int, dropout: ShareBelowOne) -> None:
        check_arguments(FeedForward.__init__, locals())
        super().__init__(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width), nn.Dropout(dropout))


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward over all tokens of a pair."""

    def __init__(self, width: PositiveInt, heads: PositiveInt, hidden: PositiveInt, dropout: ShareBelowOne) -> None:
        check_arguments(EncoderLayer.__init__, locals())
        super().__init__()
        check_heads(width, heads)
        self.heads = heads
        self.dropout = dropout
        self.norm_attention, self.norm_feed = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.feed = FeedForward(width, hidden, dropout)

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        q, k, v = (split_heads(part, self.heads) for part in self.qkv(self.norm_attention(x)).chunk(3, -1))
        attended = attend(q, k, v, bias)  # (B, heads, N, d)
        x = x + F.dropout(self.out(merge_heads(attended)), self.dropout, self.training)
        return x + self.feed(self.norm_feed(x))


class CrossLayer(nn.Module):
    """Modules of a pre-norm layer of self-attention, cross-attention to a memory, and feed-forward.

    Subclasses define the order in ``forward``.
    """

    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        check_heads(width, heads)
        self.heads = heads
        self.dropout = dropout
        self.norm_self, self.norm_cross, self.norm_feed = (nn.LayerNorm(width) for _ in range(3))
        self.qkv = nn.Linear(width, 3 * width)
        self.out_self = nn.Linear(width, width)
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out_cross = nn.Linear(width, width)
        self.feed = FeedForward(width, hidden, dropout)

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout) if self.training else x

    def memory(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the memory ``(B, N, D)``, each ``(B, heads, N, d)``."""
        key, value = self.key_value(memory).chunk(2, -1)
        return split_heads(key, self.heads), split_heads(value, self.heads)

    def _cross(self, x: Tensor, memory: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        """Attend from ``(B, Q, D)`` to the memory; ``mask (B, N)`` is True at its valid tokens."""
        query = split_heads(self.query(self.norm_cross(x)), self.heads)
        allowed = None if mask is None else mask[:, None, None]  # (B, 1, 1, N)
        return x + self._drop(self.out_cross(merge_heads(attend(query, *memory, allowed))))


class DecoderLayer(CrossLayer):
    """Causal self-attention, cross-attention to the memory of the pair, and feed-forward."""

    def forward(self, x: Tensor, memory: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        """All positions of K captions at once, ``(B, K, T, D)``."""
        num_pairs, num_captions, length, _ = x.shape
        x = x.flatten(0, 1)  # (B K, T, D)
        q, k, v = (split_heads(part, self.heads) for part in self.qkv(self.norm_self(x)).chunk(3, -1))
        x = x + self._drop(self.out_self(merge_heads(attend(q, k, v, causal=True))))
        x = self._cross(x.view(num_pairs, num_captions * length, -1), memory, mask)  # (B, K T, D)
        x = x + self.feed(self.norm_feed(x))
        return x.view(num_pairs, num_captions, length, -1)

    def step(
        self,
        x: Tensor,
        update_cache: CacheUpdate,
        memory: tuple[Tensor, Tensor],
        mask: Tensor | None,
        captions_per_pair: int = 1,
    ) -> Tensor:
        """One more position ``(N, 1, D)`` of every caption; ``update_cache`` appends its keys and values."""
        q, k, v = split_step(self.qkv(self.norm_self(x)), 3, self.heads)
        x = x + self.out_self(merge_heads(attend(q, *update_cache(k, v))))
        x = self._cross(group_captions(x, captions_per_pair), memory, mask)  # (P, N / P, D)
        return group_captions(x + self.feed(self.norm_feed(x)), 1)


@dataclass
class DecoderState:
    """KV cache of a decoder for N unfinished captions, equally many of each of P pairs.

    Args:
        memory: keys and values of the memory per layer, ``(P, heads, M, d)``.
        past: keys and values of earlier tokens per layer, ``(N, heads, t, d)``; captions of a pair are contiguous.
        mask: bool ``(P, M)``, True at valid tokens of the memory; None when all are valid.
        captions_per_pair: N / P.
    """

    memory: list[tuple[Tensor, Tensor]]
    past: list[tuple[Tensor, Tensor]]
    mask: Tensor | None
    captions_per_pair: int = 1

    def __post_init__(self) -> None:
        self._buffers = self.past
        """Keys and values with room for further tokens; ``past`` are views of them."""

    @classmethod
    def before(cls, memory: list[tuple[Tensor, Tensor]], mask: Tensor | None) -> DecoderState:
        """State before the first token, from the keys and values of the memory per layer."""
        # read for every token; contiguous tensors take two thirds of the time
        memory = [(key.contiguous(), value.contiguous()) for key, value in memory]
        return cls(memory, [(key[:, :, :0], value[:, :, :0]) for key, value in memory], mask)

    def advance(self, layers: Iterable[nn.Module], x: Tensor) -> Tensor:
        """Run one more position ``(N, 1, D)`` through all layers, each with the ``step`` of `DecoderLayer`."""
        length = self.length
        if not torch.compiler.is_exporting() and self._buffers[0][0].shape[2] == length:
            self._buffers = [(_grow_buffer(key), _grow_buffer(value)) for key, value in self.past]
        for index, (layer, memory) in enumerate(zip(layers, self.memory, strict=True)):
            x = layer.step(  # type: ignore[operator]
                x,
                update_cache=partial(self._update_cache, index, length),
                memory=memory,
                mask=self.mask,
                captions_per_pair=self.captions_per_pair,
            )
        return x

    def _update_cache(self, layer: int, length: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values ``(N, heads, 1, d)`` of one layer to the cache of ``length`` tokens; returns all."""
        if key.requires_grad or torch.compiler.is_exporting():  # tensors of a graph must not be modified in place
            past = self.past[layer]
            self.past[layer] = torch.cat([past[0], key], 2), torch.cat([past[1], value], 2)
            self._buffers[layer] = self.past[layer]
        else:
            keys, values = self._buffers[layer]
            keys.narrow(2, length, 1).copy_(key)
            values.narrow(2, length, 1).copy_(value)
            self.past[layer] = keys.narrow(2, 0, length + 1), values.narrow(2, 0, length + 1)
        return self.past[layer]

    def select(self, rows: Tensor) -> DecoderState:
        """State of selected captions ``rows (M,)``, each with its own copy of the memory."""
        pairs = rows if self.captions_per_pair == 1 else rows // self.captions_per_pair
        return self._with_rows(_select_rows(self.memory, pairs), rows, self._select_mask(pairs), 1)

    def reorder(self, rows: Tensor, pairs: Tensor) -> DecoderState:
        """State of selected captions, equally many per selected pair; captions of a pair share its memory.

        Args:
            rows: indices of the captions; those of a pair are contiguous.
            pairs: indices of their pairs, each once and in order.
        """
        captions_per_pair = len(rows) // len(pairs)
        if len(pairs) == len(self.memory[0][0]):
            return self._with_rows(self.memory, rows, self.mask, captions_per_pair)
        return self._with_rows(_select_rows(self.memory, pairs), rows, self._select_mask(pairs), captions_per_pair)

    def _with_rows(
        self, memory: list[tuple[Tensor, Tensor]], rows: Tensor, mask: Tensor | None, captions_per_pair: int
    ) -> DecoderState:
        """State of selected captions, with their allocated buffers."""
        buffers, length = _select_rows(self._buffers, rows), self.length
        selected = DecoderState(
            memory, [(key[:, :, :length], value[:, :, :length]) for key, value in buffers], mask, captions_per_pair
        )
        selected._buffers = buffers
        return selected

    def _select_mask(self, pairs: Tensor) -> Tensor | None:
        return None if self.mask is None else self.mask[pairs]

    @property
    def length(self) -> int:
        """Number of tokens so far."""
        return self.past[0][0].shape[2]


def _select_rows(layers: list[tuple[Tensor, Tensor]], rows: Tensor) -> list[tuple[Tensor, Tensor]]:
    return [(key.index_select(0, rows), value.index_select(0, rows)) for key, value in layers]


def _grow_buffer(past: Tensor) -> Tensor:
    """Copy keys or values ``(N, heads, t, d)`` into a buffer ``(N, heads, t + CACHE_BLOCK, d)``."""
    num_captions, heads, length, head_width = past.shape
    buffer = past.new_empty(num_captions, heads, length + CACHE_BLOCK, head_width)
    buffer[:, :, :length] = past
    return buffer


class Decoder(nn.Module):
    """Causal decoder with tied input and output embeddings, and learned position embeddings (timm's ``pos_embed``).

    Args:
        vocabulary: number of words.
        width: width of all tokens.
        layers: number of decoder layers.
        heads: number of attention heads (timm's ``num_heads``).
        hidden: width of the feed-forward layers.
        dropout: dropout probability.
        max_length: maximum length of a caption, including the begin token.
    """

    def __init__(
        self,
        vocabulary: PositiveInt,
        width: PositiveInt,
        layers: PositiveInt,
        heads: PositiveInt,
        hidden: PositiveInt,
        dropout: ShareBelowOne,
        max_length: PositiveInt = 256,
    ) -> None:
        check_arguments(Decoder.__init__, locals())
        super().__init__()
        check_heads(width, heads)
        self.heads = heads
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.empty(max_length, width))
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(DecoderLayer(width, heads, hidden, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        nn.init.normal_(self.position, std=0.02)

    def _embed(self, tokens: Tensor, past: int) -> Tensor:
        """Embed tokens ``(..., T)`` after ``past`` earlier ones, ``(..., T, D)``."""
        length = past + tokens.shape[-1]
        if length > len(self.position):
            raise DataError(
                f"a caption of {length} tokens is longer than the decoder's {len(self.position)}; shorten the "
                f"captions or lower max_length"
            )
        return self.embedding(tokens) + self.position[past:length]

    def _word_logits(self, x: Tensor) -> Tensor:
        return F.linear(self.norm(x), self.embedding.weight, self.bias)

    def forward(self, memory: Tensor, mask: Tensor | None, tokens: Tensor) -> Tensor:
        """Logits ``(B, K, T, V)`` for tokens ``(B, K, T)`` and memory ``(B, M, D)``."""
        x = self.dropout(self._embed(tokens, 0))
        for layer in self.layers:
            x = layer(x, layer.memory(memory), mask)  # type: ignore[operator]
        return self._word_logits(x)

    def start(self, memory: Tensor, mask: Tensor | None) -> DecoderState:
        """State before the first token."""
        keys_and_values = [layer.memory(memory) for layer in self.layers]  # type: ignore[operator]
        return DecoderState.before(keys_and_values, mask)

    def step(self, state: DecoderState, tokens: Tensor) -> Tensor:
        """Logits ``(N, V)`` after tokens ``(N,)``; advances the state."""
        x = state.advance(self.layers, self._embed(tokens[:, None], state.length))
        return self._word_logits(x)[:, 0]
