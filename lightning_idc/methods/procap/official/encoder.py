"""Networks of the authors' code where they differ from the paper; README.md lists every difference."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_idc.checkpoints.restricted import is_torchscript, read_foreign_checkpoint, read_torchscript
from lightning_idc.methods.procap.net import ProCapNet, ProcedureEncoder, sinusoids
from lightning_idc.nn.transformer import CacheUpdate, DecoderState, attend, group_captions, merge_heads, split_heads
from lightning_idc.utils.errors import ConfigError, reads_file

TEXT_SLOTS = 24
CONTROLS = TEXT_SLOTS + 2
"""Tokens before the frames in the second stage: 24 empty words, a separator, the consistency token."""
BLIND = slice(TEXT_SLOTS + 1, TEXT_SLOTS + 3)
"""Rows that do not attend to earlier tokens. They were meant for a sequence that starts with the alignment token;
the second stage has none, so the second of them is the first patch of the before image."""

_BLOCK_PARTS = (
    (r"^attn\.in_proj_", "qkv."),
    (r"^attn\.out_proj\.", "out."),
    (r"^ln_1\.", "norm_attention."),
    (r"^ln_2\.", "norm_feed."),
    (r"^mlp\.c_fc\.", "feed.0."),
    (r"^mlp\.c_proj\.", "feed.2."),
)


SPECIAL_TOKENS = 3
"""Used rows of the code's table of special tokens: alignment, separator, consistency."""


class QuickGELU(nn.Module):
    """x times the logistic function of 1.702 x, as in OpenAI's CLIP, whose blocks the trunk is."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


class OfficialTrunk(ProcedureEncoder):
    """The encoder of the code: CLIP's activation, and position embeddings of initial standard deviation 1.

    Args:
        options: arguments of :class:`~lightning_idc.methods.procap.net.ProcedureEncoder`.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.relative is not None:
            raise ConfigError(
                "relative_position_bias is true, which the authors' code does not have; use ProCap and ProcedureModel"
            )
        for layer in self.layers:
            layer.feed[1] = QuickGELU()  # type: ignore[operator,index,assignment]
        for embedding in (self.frame_embed, self.row_embed, self.column_embed):
            nn.init.normal_(embedding)


class OfficialEncoder(OfficialTrunk):
    """The encoder of the second stage, with 26 control tokens before the frames.

    Args:
        options: arguments of :class:`~lightning_idc.methods.procap.net.ProcedureEncoder`.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # two tables that are added, as in the code: an optimizer step moves their sum twice as far as one table
        self.control_words = nn.Parameter(0.02 * torch.randn(CONTROLS, self.width))
        self.control_positions = nn.Parameter(0.02 * torch.randn(CONTROLS, self.width))
        self.register_buffer("bias", blind_rows(CONTROLS + self.frames * self.cells), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        controls = (self.control_words + self.control_positions).expand(len(tokens), -1, -1)
        return self.run(torch.cat([controls, tokens], 1), self.bias)[:, CONTROLS:]  # type: ignore[arg-type]


def blind_rows(length: int) -> Tensor:
    """Attention bias ``(N, N)`` with which two rows do not attend to earlier tokens."""
    bias = torch.zeros(length, length)
    for row in range(length)[BLIND]:
        bias[row, :row] = float("-inf")
    return bias


def control_tables(
    words: Tensor, special: Tensor, word_positions: Tensor, special_positions: Tensor
) -> tuple[Tensor, Tensor]:
    """The two tables of control tokens of the second stage from those of the first.

    Empty captions use words 0 to 23, which are sub-words of CLIP and not the learned padding, as the table was created
    for 24 words and then overwritten. The alignment token is not used.
    """
    return (
        torch.cat([words[:TEXT_SLOTS], special[1:SPECIAL_TOKENS]]),
        torch.cat([word_positions[:TEXT_SLOTS], special_positions[1:SPECIAL_TOKENS]]),
    )


def trunk_state(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Layers of an encoder from the residual blocks of OpenAI's CLIP below ``prefix``."""
    weights = {}
    for key, value in state.items():
        layer, _, rest = key.removeprefix(prefix).partition(".")
        if key.startswith(prefix) and rest != "attn_mask":
            weights[f"layers.{layer}.{renamed(rest, _BLOCK_PARTS)}"] = value
    return weights


def renamed(key: str, parts: tuple[tuple[str, str], ...]) -> str:
    """Name of a weight after all replacements of regular expressions."""
    for pattern, new in parts:
        key = re.sub(pattern, new, key)
    return key


class UnbiasedLayerNorm(nn.Module):
    """Layer normalisation by the unbiased standard deviation, to which eps is added."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.gamma, self.beta, self.eps = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        return self.gamma * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + self.eps) + self.beta


class OfficialAttention(nn.Module):
    """Attention without biases whose logits are divided by the root of the whole width, not of a head's."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, width**-0.5
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def project_kv(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of ``(B, N, D)``, each ``(B, heads, N, d)``."""
        return split_heads(self.key(x), self.heads), split_heads(self.value(x), self.heads)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, causal: bool = False) -> Tensor:
        query = split_heads(self.query(x), self.heads)
        return self.out(merge_heads(attend(query, keys, values, mask, scale=self.scale, causal=causal)))


class OfficialDecoderLayer(nn.Module):
    """Post-norm: self-attention, attention to the memory, feed-forward, each added and then normalised."""

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
        """One more position ``(N, 1, D)``, whose keys and values ``update_cache`` caches."""
        x = self.norm_self(x + self.self_attention(x, *update_cache(*self.self_attention.project_kv(x)), None))
        return group_captions(self._cross_and_mlp(group_captions(x, captions_per_pair), memory, mask), 1)


class OfficialDecoder(nn.Module):
    """The text decoder of the code, with cached decoding added.

    Args:
        vocabulary: number of words.
        width: width of all tokens; even.
        layers: decoder layers.
        heads: attention heads.
        hidden: width of the feed-forward layers.
        dropout: dropout probability.
    """

    def __init__(self, vocabulary: int, width: int, layers: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        if width % 2:
            raise ConfigError(f"the official decoder's sinusoids need an even width; it is {width}")
        self.layers = nn.ModuleList(OfficialDecoderLayer(width, heads, hidden, dropout) for _ in range(layers))
        self.words = nn.Linear(width, vocabulary)
        self.dropout = nn.Dropout(dropout)

    def _embed(self, tokens: Tensor, past: int) -> Tensor:
        weight = self.words.weight
        x = F.embedding(tokens, weight) * math.sqrt(weight.shape[1])
        return self.dropout(x + sinusoids(past, tokens.shape[-1], x))

    def forward(self, memory: Tensor, mask: Tensor | None, tokens: Tensor) -> Tensor:
        """Logits ``(B, K, T, V)`` for tokens ``(B, K, T)`` over memory ``(B, N, D)``."""
        x = self._embed(tokens, 0)
        for layer in self.layers:
            x = layer(x, layer.cross.project_kv(memory), mask)  # type: ignore[operator,union-attr]
        return self.words(x)

    def start(self, memory: Tensor, mask: Tensor | None) -> DecoderState:
        """State before the first token."""
        keys = [layer.cross.project_kv(memory) for layer in self.layers]  # type: ignore[operator,union-attr]
        return DecoderState.before(keys, mask)

    def step(self, state: DecoderState, tokens: Tensor) -> Tensor:
        """Logits ``(N, V)`` after tokens ``(N,)``; advances the state."""
        x = state.advance(self.layers, self._embed(tokens[:, None], state.length))
        return self.words(x)[:, 0]


class OfficialNet(ProCapNet):
    """The second stage of the code: the tokenizer's features are computed from pixels in [0, 1]."""

    def tokenizer_features(self, images: Tensor) -> Tensor:
        return self.tokenizer.features(images.to(self.encoder.mask_embedding.dtype) / 255)


def smoothed_divergence(logits: Tensor, targets: Tensor, mask: Tensor, smoothing: float = 0.1) -> Tensor:
    """KL divergence from smoothed targets, summed over all tokens of the batch.

    The target has probability ``1 - smoothing``, every other word of V has ``smoothing / (V - 1)``.

    Args:
        logits: ``(..., V)``.
        targets: ids ``(...)``.
        mask: bool ``(...)``, True where the token counts.
        smoothing: label smoothing.

    Example:
        >>> smoothed_divergence(torch.zeros(1, 4), torch.tensor([1]), torch.tensor([True]), smoothing=0.0)  # log 4
        tensor(1.3863)
    """
    log_probs = logits[mask].log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
    others = logits.shape[-1] - 1
    target_log_probs = log_probs.gather(-1, targets[mask][:, None])[:, 0]
    other_mass, entropy = smoothing / others, 0.0
    for mass, count in ((1 - smoothing, 1), (other_mass, others)):
        entropy += count * mass * math.log(mass) if mass > 0 else 0.0
    cross = (1 - smoothing - other_mass) * target_log_probs + other_mass * log_probs.sum(-1)
    return (entropy - cross).sum()


@reads_file("path")
def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Weights of a torch, TorchScript or safetensors file, also below ``model``, ``weights`` or ``state_dict``."""
    source = Path(path)
    if source.suffix == ".safetensors" and source.is_file():
        from safetensors.torch import load_file

        return load_file(source)
    if source.is_file() and is_torchscript(source):
        return {key: value.float() for key, value in read_torchscript(source).items()}
    weights: Any = read_foreign_checkpoint(source)
    for name in ("model", "weights", "state_dict"):
        weights = weights.get(name, weights)
    return {key.removeprefix("module."): value for key, value in weights.items()}
