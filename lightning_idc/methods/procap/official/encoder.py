"""Networks of the authors' code that differ from the paper; README.md lists the differences."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_idc.methods.procap.net import ProCapNet, ProcedureEncoder, sinusoids
from lightning_idc.nn.attention import attend
from lightning_idc.nn.transformer import CacheUpdate, DecoderState, group_captions, merge_heads, split_heads
from lightning_idc.utils.errors import ConfigError

TEXT_SLOTS = 24
CONTROLS = TEXT_SLOTS + 2
"""Number of tokens before the frames in the second stage: 24 empty words, a separator and the consistency token."""
BLIND = slice(TEXT_SLOTS + 1, TEXT_SLOTS + 3)
"""Rows that do not attend to earlier tokens. The code's indices assume a sequence that starts with the alignment token,
which the second stage does not have, so the second of these rows is the first patch of the before image."""

_BLOCK_PARTS = (
    (r"^attn\.in_proj_", "qkv."),
    (r"^attn\.out_proj\.", "out."),
    (r"^ln_1\.", "norm_attention."),
    (r"^ln_2\.", "norm_feed."),
    (r"^mlp\.c_fc\.", "feed.0."),
    (r"^mlp\.c_proj\.", "feed.2."),
)


SPECIAL_TOKENS = 3
"""Number of rows in use of the code's table of special tokens: alignment, separator, consistency."""


class QuickGELU(nn.Module):
    """x * sigmoid(1.702 x), the activation of OpenAI's CLIP."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


class OfficialTrunk(ProcedureEncoder):
    """Encoder of the authors' code: CLIP's activation, and position embeddings with an initial deviation of 1.

    Args:
        options: arguments of :class:`~lightning_idc.methods.procap.net.ProcedureEncoder`.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.relative is not None:
            raise ConfigError(
                "relative_position_bias is true, but the authors' code has no such bias; use ProCap and ProcedureModel"
            )
        for layer in self.layers:
            layer.feed[1] = QuickGELU()  # type: ignore[operator,index,assignment]
        for embedding in (self.frame_embed, self.row_embed, self.column_embed):
            nn.init.normal_(embedding)


class OfficialEncoder(OfficialTrunk):
    """Encoder of the second stage, with 26 control tokens before the frames.

    Args:
        options: arguments of :class:`~lightning_idc.methods.procap.net.ProcedureEncoder`.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # the sum of two tables, as in the code: an optimizer step changes the sum twice as much as a single table
        self.control_words = nn.Parameter(0.02 * torch.randn(CONTROLS, self.width))
        self.control_positions = nn.Parameter(0.02 * torch.randn(CONTROLS, self.width))
        self.register_buffer("bias", blind_rows(CONTROLS + self.frames * self.cells), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        controls = (self.control_words + self.control_positions).expand(len(tokens), -1, -1)
        return self.run(torch.cat([controls, tokens], 1), self.bias)[:, CONTROLS:]  # type: ignore[arg-type]


def blind_rows(length: int) -> Tensor:
    """Attention bias ``(N, N)`` by which the rows :data:`BLIND` do not attend to earlier tokens."""
    bias = torch.zeros(length, length)
    for row in range(length)[BLIND]:
        bias[row, :row] = float("-inf")
    return bias


def control_tables(
    words: Tensor, special: Tensor, word_positions: Tensor, special_positions: Tensor
) -> tuple[Tensor, Tensor]:
    """The two tables of control tokens of the second stage, from the tables of the first stage.

    The empty words are the entries 0 to 23 of the table of words. These are sub-words of CLIP and not the learned
    padding, since the code creates the table for 24 words and then overwrites it. The alignment token is left out.

    Args:
        words: embeddings of words and padding, ``(V + 25, D)``.
        special: embeddings of special tokens, ``(>= 3, D)``.
        word_positions: position embeddings of words, ``(>= 24, D)``.
        special_positions: position embeddings of special tokens, ``(>= 3, D)``.
    """
    return (
        torch.cat([words[:TEXT_SLOTS], special[1:SPECIAL_TOKENS]]),
        torch.cat([word_positions[:TEXT_SLOTS], special_positions[1:SPECIAL_TOKENS]]),
    )


def trunk_state(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Weights of an encoder's layers, from the residual blocks of OpenAI's CLIP under ``prefix``."""
    weights = {}
    for key, value in state.items():
        layer, _, name = key.removeprefix(prefix).partition(".")
        if key.startswith(prefix) and name != "attn_mask":
            weights[f"layers.{layer}.{renamed(name, _BLOCK_PARTS)}"] = value
    return weights


def renamed(key: str, replacements: tuple[tuple[str, str], ...]) -> str:
    """Name of a weight after replacements of regular expressions, applied in order."""
    for pattern, replacement in replacements:
        key = re.sub(pattern, replacement, key)
    return key


class UnbiasedLayerNorm(nn.Module):
    """Layer normalisation by the unbiased standard deviation, to which eps is added."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.gamma, self.beta, self.eps = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        return self.gamma * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + self.eps) + self.beta


class OfficialAttention(nn.Module):
    """Attention without biases, whose logits are divided by the root of the full width instead of a head's width."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, width**-0.5
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def project_kv(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of tokens ``(B, N, D)``, ``(B, heads, N, d)`` each."""
        return split_heads(self.key(x), self.heads), split_heads(self.value(x), self.heads)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, causal: bool = False) -> Tensor:
        query = split_heads(self.query(x), self.heads)
        return self.out(merge_heads(attend(query, keys, values, mask, scale=self.scale, causal=causal)))


class OfficialDecoderLayer(nn.Module):
    """Post-norm decoder layer: self-attention, cross-attention to the memory, and feed-forward."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.self_attention, self.cross = OfficialAttention(width, heads), OfficialAttention(width, heads)
        self.feed = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width))
        self.norm_self, self.norm_cross, self.norm_feed = (UnbiasedLayerNorm(width) for _ in range(3))
        self.dropout = nn.Dropout(dropout)

    def _cross_and_mlp(self, x: Tensor, memory: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        allowed = None if mask is None else mask[:, None, None]
        x = self.norm_cross(x + self.dropout(self.cross(x, *memory, allowed)))
        return self.norm_feed(x + self.dropout(self.feed(x)))

    def forward(self, x: Tensor, memory: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        """All positions of K captions at once: ``(B, K, T, D)``."""
        shape = x.shape
        x = x.flatten(0, 1)
        attended = self.self_attention(x, *self.self_attention.project_kv(x), None, causal=True)
        x = self.norm_self(x + self.dropout(attended))
        return self._cross_and_mlp(x.view(shape[0], -1, shape[-1]), memory, mask).view(shape)

    def step(
        self,
        x: Tensor,
        update_cache: CacheUpdate,
        memory: tuple[Tensor, Tensor],
        mask: Tensor | None,
        captions_per_pair: int = 1,
    ) -> Tensor:
        """One more position of each caption, ``(N, 1, D)``; ``update_cache`` caches its keys and values."""
        x = self.norm_self(x + self.self_attention(x, *update_cache(*self.self_attention.project_kv(x)), None))
        return group_captions(self._cross_and_mlp(group_captions(x, captions_per_pair), memory, mask), 1)


class OfficialDecoder(nn.Module):
    """Text decoder of the authors' code, with cached decoding added.

    Args:
        vocabulary: number of words.
        width: width of all tokens, an even number.
        layers: number of layers.
        heads: number of attention heads.
        hidden: hidden width of the feed-forward layers.
        dropout: dropout probability.
    """

    def __init__(self, vocabulary: int, width: int, layers: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        if width % 2:
            raise ConfigError(f"decoder_width is {width}; expected an even number, which sinusoidal positions need")
        self.layers = nn.ModuleList(OfficialDecoderLayer(width, heads, hidden, dropout) for _ in range(layers))
        self.words = nn.Linear(width, vocabulary)
        self.dropout = nn.Dropout(dropout)

    def _embed(self, tokens: Tensor, past: int) -> Tensor:
        weight = self.words.weight
        x = F.embedding(tokens, weight) * math.sqrt(weight.shape[1])
        return self.dropout(x + sinusoids(past, tokens.shape[-1], x))

    def forward(self, memory: Tensor, mask: Tensor | None, tokens: Tensor) -> Tensor:
        """Logits ``(B, K, T, V)`` for tokens ``(B, K, T)`` over memory ``(B, N, D)``."""
        x = self._embed(tokens, 0)  # (B, K, T, D)
        for layer in self.layers:
            x = layer(x, layer.cross.project_kv(memory), mask)  # type: ignore[operator,union-attr]
        return self.words(x)

    def start(self, memory: Tensor, mask: Tensor | None) -> DecoderState:
        """Decoding state before the first token."""
        keys_and_values = [layer.cross.project_kv(memory) for layer in self.layers]  # type: ignore[operator,union-attr]
        return DecoderState.before(keys_and_values, mask)

    def step(self, state: DecoderState, tokens: Tensor) -> Tensor:
        """Logits ``(N, V)`` after tokens ``(N,)``; advances the state."""
        x = state.advance(self.layers, self._embed(tokens[:, None], state.length))
        return self.words(x)[:, 0]


class OfficialNet(ProCapNet):
    """Network of the second stage of the authors' code: pixels of the tokenizer's features are in [0, 1]."""

    def tokenizer_features(self, images: Tensor) -> Tensor:
        return self.tokenizer.features(images.to(self.encoder.mask_embedding.dtype) / 255)


def smoothed_divergence(logits: Tensor, targets: Tensor, mask: Tensor, smoothing: float = 0.1) -> Tensor:
    """KL divergence from smoothed targets, summed over all tokens of the batch.

    The target has the probability ``1 - smoothing``, each other word of V has ``smoothing / (V - 1)``.

    Args:
        logits: ``(..., V)``.
        targets: ids ``(...)``.
        mask: bool ``(...)``, True at tokens that count.
        smoothing: label smoothing.

    Example:
        >>> smoothed_divergence(torch.zeros(1, 4), torch.tensor([1]), torch.tensor([True]), smoothing=0.0)  # log 4
        tensor(1.3863)
    """
    log_probs = logits[mask].log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))  # (N, V)
    num_others = logits.shape[-1] - 1
    target_log_probs = log_probs.gather(-1, targets[mask][:, None])[:, 0]
    other_probability, negative_entropy = smoothing / num_others, 0.0
    for probability, count in ((1 - smoothing, 1), (other_probability, num_others)):
        negative_entropy += count * probability * math.log(probability) if probability > 0 else 0.0
    negative_cross_entropy = (1 - smoothing - other_probability) * target_log_probs
    negative_cross_entropy = negative_cross_entropy + other_probability * log_probs.sum(-1)
    return (negative_entropy - negative_cross_entropy).sum()
