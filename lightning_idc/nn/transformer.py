"""Pre-norm transformer blocks for pairs: a cross-image encoder and a causal decoder with cached keys and values.

Vaswani et al. 2017, with normalisation before each part. K captions share the memory of their pair:
for cross-attention they are merged into the query dimension, so that the memory is never copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_idc.utils.bounds import PositiveInt, ShareBelowOne, check_arguments
from lightning_idc.utils.errors import ConfigError, DataError

CacheUpdate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Appends keys and values of the newest token, ``(N, heads, 1, d)`` each, to a cache and returns all of them."""
MAX_UNFUSED_QUERIES = 8
"""Number of queries up to which attention on a CPU is two matrix products instead of the fused kernel."""
CACHE_BLOCK = 16
"""Number of tokens by which a cache of keys and values grows."""


def check_heads(width: PositiveInt, heads: PositiveInt) -> None:
    """Check that the number of heads divides the width.

    Raises:
        ConfigError: the width is not a multiple of the heads.
    """
    check_arguments(check_heads, locals())
    if width % heads:
        raise ConfigError(f"heads is {heads} and width {width}; expected a width that is a multiple of the heads")


def split_heads(x: Tensor, heads: int) -> Tensor:
    """``(B, N, D)`` to ``(B, heads, N, D / heads)``."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def split_step(x: Tensor, parts: int, heads: int) -> tuple[Tensor, ...]:
    """``(B, N, parts * D)`` to ``parts`` tensors as `split_heads` returns them: fewer views, slower gradients."""
    return x.unflatten(-1, (parts, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)


def merge_heads(x: Tensor) -> Tensor:
    """``(B, heads, N, d)`` to ``(B, N, heads * d)``."""
    return x.transpose(1, 2).flatten(2)


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None = None,
    scale: float | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """`scaled_dot_product_attention`, faster on a CPU for the few queries of a decoding step.

    Args:
        query: ``(N, heads, q, d)``.
        keys: ``(N, heads, M, d)``.
        values: ``(N, heads, M, d)``.
        mask: broadcasts to ``(N, heads, q, M)``, True where a key counts.
        scale: factor of the dot products; ``d ** -0.5`` when None.
        causal: whether a query does not attend to later keys.
        dropout: dropout probability of attention weights.
    """
    # two batched products take two thirds of the time of the fused kernel, which is made for many queries
    is_small = query.shape[2] <= MAX_UNFUSED_QUERIES and query.device.type == "cpu" and query.dtype == torch.float32
    if mask is not None or causal or dropout or not is_small:
        return F.scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, dropout_p=dropout, is_causal=causal, scale=scale
        )
    scaled = (query * (query.shape[-1] ** -0.5 if scale is None else scale)).flatten(0, 1)
    weights = torch.bmm(scaled, keys.flatten(0, 1).mT).softmax(-1)
    return torch.bmm(weights, values.flatten(0, 1)).unflatten(0, query.shape[:2])


def group_captions(x: Tensor, count: int) -> Tensor:
    """Tokens ``(..., D)`` as queries ``(N / count, count, D)``, so that captions of a pair share its memory."""
    return x if x.shape[1] == count else x.view(-1, count, x.shape[-1])


class FeedForward(nn.Sequential):
    """Two linear layers with a GELU between them, and dropout of the output only.

    On a CPU, dropout of the hidden activations takes as long as one of the matrix products.
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
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        x = x + F.dropout(self.out(merge_heads(attended)), self.dropout, self.training)
        return x + self.feed(self.norm_feed(x))


class CrossLayer(nn.Module):
    """Parts of a layer of self-attention, attention to a memory, and feed-forward, normalised before each."""

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
        """Attend from ``(B, Q, D)`` to the memory; ``mask (B, N)`` is True where the memory counts."""
        query = split_heads(self.query(self.norm_cross(x)), self.heads)
        allowed = None if mask is None else mask[:, None, None]
        return x + self._drop(self.out_cross(merge_heads(attend(query, *memory, allowed))))


class DecoderLayer(CrossLayer):
    """Causal self-attention, attention to the memory of the pair, and feed-forward."""

    def forward(self, x: Tensor, memory: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        """All positions of K captions at once: ``(B, K, T, D)``."""
        pairs, captions, length, _ = x.shape
        x = x.flatten(0, 1)
        q, k, v = (split_heads(part, self.heads) for part in self.qkv(self.norm_self(x)).chunk(3, -1))
        x = x + self._drop(self.out_self(merge_heads(F.scaled_dot_product_attention(q, k, v, is_causal=True))))
        x = self._cross(x.view(pairs, captions * length, -1), memory, mask)
        x = x + self.feed(self.norm_feed(x))
        return x.view(pairs, captions, length, -1)

    def step(
        self,
        x: Tensor,
        update_cache: CacheUpdate,
        memory: tuple[Tensor, Tensor],
        mask: Tensor | None,
        captions_per_pair: int = 1,
    ) -> Tensor:
        """One more position ``(N, 1, D)`` of every caption; ``update_cache`` caches its keys and values."""
        q, k, v = split_step(self.qkv(self.norm_self(x)), 3, self.heads)
        x = x + self.out_self(merge_heads(attend(q, *update_cache(k, v))))
        x = self._cross(group_captions(x, captions_per_pair), memory, mask)
        return group_captions(x + self.feed(self.norm_feed(x)), 1)


@dataclass
class DecoderState:
    """Cached keys and values of a decoder for N unfinished captions, equally many of each of P pairs.

    Args:
        memory: keys and values of the memory per layer, ``(P, heads, M, d)``.
        past: keys and values of earlier tokens per layer, ``(N, heads, t, d)``, captions of a pair together.
        mask: bool ``(P, M)``, True at valid tokens of the memory; None when all are valid.
        captions_per_pair: N / P.
    """

    memory: list[tuple[Tensor, Tensor]]
    past: list[tuple[Tensor, Tensor]]
    mask: Tensor | None
    captions_per_pair: int = 1

    def __post_init__(self) -> None:
        self._buffers = self.past
        """Keys and values allocated for further tokens; ``past`` are views of them."""

    @classmethod
    def before(cls, memory: list[tuple[Tensor, Tensor]], mask: Tensor | None) -> DecoderState:
        """State before the first token, given keys and values of the memory per layer."""
        # read for every token: contiguous heads take two thirds of the time
        memory = [(key.contiguous(), value.contiguous()) for key, value in memory]
        return cls(memory, [(key[:, :, :0], value[:, :, :0]) for key, value in memory], mask)

    def advance(self, layers: Iterable[nn.Module], x: Tensor) -> Tensor:
        """Run one more position ``(N, 1, D)`` through all layers, which have the ``step`` of `DecoderLayer`."""
        length = self.length
        if not torch.compiler.is_exporting() and self._buffers[0][0].shape[2] == length:
            self._buffers = [(_grow_buffer(key), _grow_buffer(value)) for key, value in self.past]
        for index, (layer, memory) in enumerate(zip(layers, self.memory, strict=True)):
            x = layer.step(x, partial(self._update_cache, index, length), memory, self.mask, self.captions_per_pair)  # type: ignore[operator]
        return x

    def _update_cache(self, layer: int, length: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values ``(N, heads, 1, d)`` of one layer to the cache of ``length`` tokens; returns all."""
        if key.requires_grad or torch.compiler.is_exporting():  # tensors of a graph must not be modified
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
        """State of selected captions, each with its own copy of the memory."""
        pairs = rows if self.captions_per_pair == 1 else rows // self.captions_per_pair
        return self._with_rows(_pick(self.memory, pairs), rows, self._mask(pairs), 1)

    def reorder(self, rows: Tensor, pairs: Tensor) -> DecoderState:
        """State of selected captions, equally many of each selected pair, which share its memory.

        Args:
            rows: indices of the captions, those of a pair together.
            pairs: indices of their pairs, each once and in order.
        """
        captions_per_pair = len(rows) // len(pairs)
        if len(pairs) == len(self.memory[0][0]):
            return self._with_rows(self.memory, rows, self.mask, captions_per_pair)
        return self._with_rows(_pick(self.memory, pairs), rows, self._mask(pairs), captions_per_pair)

    def _with_rows(
        self, memory: list[tuple[Tensor, Tensor]], rows: Tensor, mask: Tensor | None, captions_per_pair: int
    ) -> DecoderState:
        """State of selected captions, with their allocated buffers."""
        buffers, length = _pick(self._buffers, rows), self.length
        chosen = DecoderState(
            memory, [(key[:, :, :length], value[:, :, :length]) for key, value in buffers], mask, captions_per_pair
        )
        chosen._buffers = buffers
        return chosen

    def _mask(self, pairs: Tensor) -> Tensor | None:
        return None if self.mask is None else self.mask[pairs]

    @property
    def length(self) -> int:
        """Number of tokens so far."""
        return self.past[0][0].shape[2]


def _pick(layers: list[tuple[Tensor, Tensor]], rows: Tensor) -> list[tuple[Tensor, Tensor]]:
    return [(key.index_select(0, rows), value.index_select(0, rows)) for key, value in layers]


def _grow_buffer(past: Tensor) -> Tensor:
    """Keys or values ``(N, heads, t, d)`` in a buffer for further tokens."""
    rows, heads, length, width = past.shape
    buffer = past.new_empty(rows, heads, length + CACHE_BLOCK, width)
    buffer[:, :, :length] = past
    return buffer


class Decoder(nn.Module):
    """Causal decoder with tied input and output embeddings.

    Args:
        vocabulary: number of words.
        width: width of all tokens.
        layers: decoder layers.
        heads: attention heads.
        hidden: width of the feed-forward layers.
        dropout: dropout probability.
        max_length: maximum length of a caption, begin token included.
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
        """Embed tokens ``(..., T)`` that follow ``past`` earlier ones."""
        length = past + tokens.shape[-1]
        if length > len(self.position):
            raise DataError(
                f"a caption of {length} tokens is longer than the decoder's {len(self.position)}; shorten the "
                f"captions or lower max_length"
            )
        return self.embedding(tokens) + self.position[past:length]

    def _words(self, x: Tensor) -> Tensor:
        return F.linear(self.norm(x), self.embedding.weight, self.bias)

    def forward(self, memory: Tensor, mask: Tensor | None, tokens: Tensor) -> Tensor:
        """Logits ``(B, K, T, V)`` for tokens ``(B, K, T)`` over memory ``(B, N, D)``."""
        x = self.dropout(self._embed(tokens, 0))
        for layer in self.layers:
            x = layer(x, layer.memory(memory), mask)  # type: ignore[operator]
        return self._words(x)

    def start(self, memory: Tensor, mask: Tensor | None) -> DecoderState:
        """State before the first token."""
        keys = [layer.memory(memory) for layer in self.layers]  # type: ignore[operator]
        return DecoderState.before(keys, mask)

    def step(self, state: DecoderState, tokens: Tensor) -> Tensor:
        """Logits ``(N, V)`` after tokens ``(N,)``; advances the state."""
        x = state.advance(self.layers, self._embed(tokens[:, None], state.length))
        return self._words(x)[:, 0]
