"""CLIP4IDC (Guo et al., AACL 2022): CLIP with joint attention over both images, and a decoder.

1. :meth:`PairClip.encode_pair` encodes each image separately in the first blocks of CLIP's image tower ("intra") and
   the tokens of both images in the last blocks ("inter").
2. In the adaptation stage, :meth:`PairClip.embed_pairs` and :meth:`PairClip.embed_captions` embed pairs and captions.
3. In the captioning stage, :class:`Clip4IdcNet` decodes the tokens. Its word embeddings are those of the text tower.

Shapes: B pairs, n tokens per image (class token included), D channels of the joint space, K captions of T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_idc.images.types import PairFeatures
from lightning_idc.nn.attention import attend
from lightning_idc.nn.backbones import SmallCNN
from lightning_idc.nn.clip import CLIP_MEAN, CLIP_STD, TEXT_HEADS, clip_computation, eot_pooling, pad_texts, text_tokens
from lightning_idc.nn.grid_backbone import IMAGENET_MEAN, IMAGENET_STD
from lightning_idc.nn.transformer import (
    CacheUpdate,
    DecoderLayer,
    DecoderState,
    EncoderLayer,
    group_captions,
    merge_heads,
    split_heads,
    split_step,
)
from lightning_idc.nn.vocabulary import Vocabulary
from lightning_idc.utils.errors import ConfigError, DataError

TokensRewrite = Callable[[list[Tensor]], Tensor]
"""Maps tokens ``(B, 2, n, C)`` of several depths, the deepest last, to new ones of the same shape."""
BERT_EPS = 1e-12
MAX_SCALE = 100.0
"""Maximum of CLIP's logit scale, the factor of cosine similarities."""
STEM_PATCH = 8
"""Patch size of :class:`Stem`, in pixels."""


class Stem(nn.Module):
    """Four convolutions that replace the patch embedding.

    Args:
        patches: patch embedding to replace.

    Raises:
        ConfigError: the patch size is not 8.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, patches: nn.Conv2d) -> None:
        super().__init__()
        if patches.stride != (STEM_PATCH, STEM_PATCH):
            raise ConfigError(f"the stem has patches of {STEM_PATCH} pixels; set `patch_size` to {STEM_PATCH}")
        self.cnn = SmallCNN()
        self.project = nn.Conv2d(self.cnn.width, patches.out_channels, 1)
        # images are normalised for CLIP, the CNN expects the mean and deviation of ImageNet
        mean, std, cnn_mean, cnn_std = (
            torch.tensor(values).view(3, 1, 1) for values in (CLIP_MEAN, CLIP_STD, IMAGENET_MEAN, IMAGENET_STD)
        )
        self.register_buffer("scale", std / cnn_std, persistent=False)
        self.register_buffer("shift", (mean - cnn_mean) / cnn_std, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Patch embeddings ``(N, C, g, g)`` of normalised images ``(N, 3, H, W)``."""
        return self.project(self.cnn.grid(images * self.scale + self.shift))


class PairClip(nn.Module):
    """Embeds pairs of images and captions in one space. A PairTextEncoder.

    Args:
        clip: a CLIP of open_clip with a vision transformer.
        vocabulary: vocabulary of its text tower.
        intra_layers: number of blocks of the image tower that encode each image separately; the others attend to both.
        stem: whether four convolutions replace the patch embedding, which is hard to learn from little data (Xiao et
            al. 2021). No official weights of CLIP have such a stem.

    Raises:
        ConfigError: the image tower has too few blocks, or its patch size is not that of the stem.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, clip: Any, vocabulary: Vocabulary, intra_layers: int = 9, stem: bool = False) -> None:
        super().__init__()
        if stem:
            clip.visual.conv1 = Stem(clip.visual.conv1)
        self.clip, self.vocabulary, self.intra_layers = clip, vocabulary, intra_layers
        num_blocks = len(clip.visual.transformer.resblocks)
        if not 0 <= intra_layers < num_blocks:
            raise ConfigError(
                f"intra_layers is {intra_layers}; expected 0 to {num_blocks - 1}, as at least one block must attend to "
                "both images"
            )
        self._rewrite: tuple[list[int], TokensRewrite] | None = None
        self.tokens_per_image, width = clip.visual.positional_embedding.shape
        self.side = nn.Parameter(torch.randn(2, width) * width**-0.5)
        self.joint_position = nn.Parameter(torch.randn(2 * self.tokens_per_image, width) * width**-0.5)
        self.ln_mid = nn.LayerNorm(width)
        self.register_buffer("mean", torch.tensor(CLIP_MEAN).view(3, 1, 1) * 255, persistent=False)
        self.register_buffer("std", torch.tensor(CLIP_STD).view(3, 1, 1) * 255, persistent=False)

    @property
    def feature_width(self) -> int:
        """Channels of the tokens of the image tower."""
        return self.side.shape[1]

    @property
    def feature_depth(self) -> int:
        """Number of blocks that encode each image separately, after which features can be replaced."""
        return self.intra_layers

    @property
    def recomputes(self) -> bool:
        """Whether activations are recomputed in the backward pass."""
        return False

    def rewrite_features(self, layers: Sequence[int], rewrite: TokensRewrite) -> None:
        """Replace the tokens after the last separate block by ``rewrite(tokens after the layers)``."""
        self._rewrite = (list(layers), rewrite)

    def normalized(self, images: Tensor) -> Tensor:
        """Normalise uint8 images ``(..., 3, H, W)`` by the mean and deviation of CLIP.

        Raises:
            DataError: the images do not have the size of the image tower.
        """
        expected = tuple(self.clip.visual.image_size)
        if tuple(images.shape[-2:]) != expected:
            raise DataError(
                f"images are {images.shape[-2]}x{images.shape[-1]}; expected {expected[0]}x{expected[1]}, the size of "
                f"this CLIP; set the data module's `image_size`"
            )
        return (images.to(self.mean.dtype) - self.mean) / self.std

    def encode_pair(self, pairs: Tensor) -> Tensor:
        """Tokens ``(B, 2 n, D)`` of normalised pairs ``(B, 2, 3, H, W)`` in the joint space.

        The tokens of the first image come first. The first token of each image is its class token.
        """
        visual = self.clip.visual
        x = visual.conv1(pairs.flatten(0, 1)).flatten(2).mT  # (2B, n - 1, C)
        x = torch.cat([visual.class_embedding.expand(len(x), 1, -1), x], 1) + visual.positional_embedding
        x = visual.ln_pre(x)
        blocks = list(visual.transformer.resblocks)
        depths = []
        for block in blocks[: self.intra_layers]:
            x = block(x)
            depths.append(x.unflatten(0, (-1, 2)))  # (B, 2, n, C)
        if self._rewrite is not None:
            layers, rewrite = self._rewrite
            x = rewrite([depths[layer - 1] for layer in layers]).flatten(0, 1)
        x = (x.unflatten(0, (-1, 2)) + self.side[:, None]).flatten(1, 2)  # (B, 2n, C)
        x = self.ln_mid(x + self.joint_position)
        for block in blocks[self.intra_layers :]:
            x = block(x)
        return visual.ln_post(x) @ visual.proj

    def pooled(self, tokens: Tensor) -> Tensor:
        """Mean of the two class tokens, ``(B, D)``, without normalisation."""
        return (tokens[:, 0] + tokens[:, self.tokens_per_image]) / 2

    def embed_pairs(self, images: Tensor) -> Tensor:
        """Unit vectors ``(B, D)`` of uint8 pairs ``(B, 2, 3, H, W)``."""
        return F.normalize(self.pooled(self.encode_pair(self.normalized(images))), dim=-1)

    def embed_tokens(self, tokens: Tensor) -> Tensor:
        """Unit vectors ``(N, D)`` of token ids ``(N, T)``: the outputs of the text tower at the end token."""
        return F.normalize(eot_pooling(text_tokens(self.clip, tokens), tokens, self.vocabulary.special.eos), dim=-1)

    def embed_captions(self, captions: Sequence[str]) -> Tensor:
        """Unit vectors ``(N, D)`` of captions, truncated to the text tower's context length."""
        tokens = pad_texts(captions, self.vocabulary, self.clip.context_length)
        return self.embed_tokens(tokens.to(self.joint_position.device))

    @property
    def scale(self) -> Tensor:
        """CLIP's learned logit scale, the factor of cosine similarities."""
        return self.clip.logit_scale.exp().clamp(max=MAX_SCALE)


def encoder_computation(options: Mapping[str, Any]) -> dict[str, Any]:
    """Hyper-parameters of a `PairClip` that change its output but not the shapes of its weights."""
    computation = {"intra_layers": options["intra_layers"]} if "intra_layers" in options else {}
    return computation | (clip_computation(options["clip"]) if "clip" in options else {})


def tower_computation(options: Mapping[str, Any]) -> dict[str, Any]:
    """Hyper-parameters of the image tower that change its output but not the shapes of its weights."""
    return {name: value for name, value in encoder_computation(options).items() if name != TEXT_HEADS}


def _as_bias(mask: Tensor | None) -> Tensor | None:
    """Mask ``(B, N)``, True at valid tokens, as ``(B, 1, 1, N)``: with dimensions for heads and queries."""
    return None if mask is None else mask[:, None, None]


class PostNormEncoderLayer(EncoderLayer):
    """Encoder layer of BERT: post-norm, with dropout of attention weights."""

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        q, k, v = (split_heads(part, self.heads) for part in self.qkv(x).chunk(3, -1))
        dropout = self.dropout if self.training else 0.0
        attended = self.out(merge_heads(attend(q, k, v, bias, dropout=dropout)))
        x = self.norm_attention(x + F.dropout(attended, self.dropout, self.training))
        return self.norm_feed(x + self.feed(x))


class PostNormDecoderLayer(DecoderLayer):
    """BERT's decoder layer: causal self-attention, cross-attention and feed-forward, post-norm."""

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False, allowed: Tensor | None = None) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        return merge_heads(attend(q, k, v, allowed, causal=causal, dropout=dropout))

    def _cross_and_mlp(self, x: Tensor, memory: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        """Cross-attention of ``x (B, Q, D)`` to the memory, and feed-forward."""
        query = split_heads(self.query(x), self.heads)
        attended = self.out_cross(self._attend(query, *memory, allowed=_as_bias(mask)))
        x = self.norm_cross(x + self._drop(attended))
        return self.norm_feed(x + self.feed(x))

    def forward(self, x: Tensor, memory: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        num_pairs, num_captions, length, _ = x.shape
        x = x.flatten(0, 1)  # (B K, T, D)
        q, k, v = (split_heads(part, self.heads) for part in self.qkv(x).chunk(3, -1))
        x = self.norm_self(x + self._drop(self.out_self(self._attend(q, k, v, causal=True))))
        # the captions of a pair attend to its memory as one sequence, so that the memory is not repeated
        x = self._cross_and_mlp(x.view(num_pairs, num_captions * length, -1), memory, mask)
        return x.view(num_pairs, num_captions, length, -1)

    def step(
        self,
        x: Tensor,
        update_cache: CacheUpdate,
        memory: tuple[Tensor, Tensor],
        mask: Tensor | None,
        captions_per_pair: int = 1,
    ) -> Tensor:
        q, k, v = split_step(self.qkv(x), 3, self.heads)
        x = self.norm_self(x + self.out_self(self._attend(q, *update_cache(k, v))))
        return group_captions(self._cross_and_mlp(group_captions(x, captions_per_pair), memory, mask), 1)


class Clip4IdcNet(nn.Module):
    """Captions pairs from the tokens of a :class:`PairClip`.

    Encoder layers refine the tokens, and decoder layer i attends to the output of encoder layer i. Word and position
    embeddings are those of CLIP's text tower; the blocks of the text tower are neither used nor trained.

    Args:
        encoder: encoder of pairs.
        layers: number of encoder layers, and of decoder layers.
        heads: number of attention heads.
        dropout: dropout probability of activations and attention weights.

    Raises:
        ConfigError: CLIP's text tower and the joint space differ in width, so that word embeddings cannot be shared.
    """

    def __init__(self, encoder: PairClip, layers: int = 3, heads: int = 8, dropout: float = 0.1) -> None:
        super().__init__()
        clip = encoder.clip
        vocabulary_size, width = clip.token_embedding.weight.shape
        if clip.visual.proj.shape[1] != width:
            raise ConfigError(
                f"the text tower has a width of {width}, the joint space of {clip.visual.proj.shape[1]}; both must be "
                "equal, as CLIP4IDC's decoder shares the word embeddings"
            )
        self.encoder = encoder
        self.memory_layers = nn.ModuleList(
            PostNormEncoderLayer(width, heads, 4 * width, dropout) for _ in range(layers)
        )
        self.decoder_layers = nn.ModuleList(
            PostNormDecoderLayer(width, heads, 4 * width, dropout) for _ in range(layers)
        )
        self.norm_words = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        self.transform = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        for module in (self.memory_layers, self.decoder_layers, self.norm_words, self.transform):
            module.apply(_init_like_bert)
        self.bias = nn.Parameter(torch.zeros(vocabulary_size))
        # distributed training would wait for gradients of unused parameters
        for unused in (clip.transformer, clip.ln_final):
            unused.requires_grad_(False)
        clip.text_projection.requires_grad_(False)
        clip.logit_scale.requires_grad_(False)

    def encode(self, images: Tensor) -> PairFeatures:
        """Features of uint8 pairs ``(B, 2, 3, H, W)``: all tokens of both images, ``(B, 2 n, D)``."""
        tokens = self.encoder.encode_pair(self.encoder.normalized(images))
        n = self.encoder.tokens_per_image
        return PairFeatures(tokens, extras={"before": tokens[:, 1:n], "after": tokens[:, n + 1 :]})

    def _memories(self, features: PairFeatures) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of the cross-attention of each decoder layer."""
        x, memories = features.memory, []
        for encoder_layer, decoder_layer in zip(self.memory_layers, self.decoder_layers, strict=True):
            x = encoder_layer(x, _as_bias(features.mask))
            memories.append(decoder_layer.memory(x))  # type: ignore[operator]
        return memories

    def _embed(self, tokens: Tensor, past: int) -> Tensor:
        """Embed tokens ``(..., T)`` that follow ``past`` earlier tokens: ``(..., T, D)``."""
        clip = self.encoder.clip
        length = past + tokens.shape[-1]
        if length > len(clip.positional_embedding):
            raise DataError(
                f"a caption has {length} tokens, more than the {len(clip.positional_embedding)} of CLIP's text tower; "
                "shorten the captions or lower max_length"
            )
        return self.norm_words(clip.token_embedding(tokens) + clip.positional_embedding[past:length])

    def _word_logits(self, x: Tensor) -> Tensor:
        """Logits ``(..., V)`` of words from outputs ``(..., D)`` of the decoder."""
        return F.linear(self.transform(x), self.encoder.clip.token_embedding.weight, self.bias)

    def logits(self, features: PairFeatures, tokens: Tensor) -> Tensor:
        """Logits ``(B, K, T, V)`` of the token after each of ``tokens (B, K, T)``.

        Raises:
            DataError: a caption is longer than CLIP's context length.
        """
        max_tokens = len(self.encoder.clip.positional_embedding)
        if tokens.shape[-1] > max_tokens:
            raise DataError(
                f"a caption has {tokens.shape[-1]} tokens, more than the {max_tokens} of CLIP's text tower "
                "(`max_length` applies to generated captions only); shorten the captions, or use a `clip` with a "
                "longer context_length"
            )
        x = self.dropout(self._embed(tokens, 0))  # (B, K, T, D)
        for layer, memory in zip(self.decoder_layers, self._memories(features), strict=True):
            x = layer(x, memory, features.mask)
        return self._word_logits(x)

    def start(self, features: PairFeatures) -> DecoderState:
        """Decoding state before the first token."""
        return DecoderState.before(self._memories(features), features.mask)

    def step(self, state: DecoderState, tokens: Tensor) -> Tensor:
        """Logits ``(N, V)`` of the token after each of ``tokens (N,)``; advances the state."""
        x = state.advance(self.decoder_layers, self._embed(tokens[:, None], state.length))
        return self._word_logits(x)[:, 0]


def _init_like_bert(module: nn.Module) -> None:
    """Initialise a module with BERT's distribution of weights and its epsilon."""
    if isinstance(module, nn.Linear):
        # 0.02 at BERT's and CLIP's width of 512, larger for narrower layers
        nn.init.normal_(module.weight, std=0.02 * (512 / min(module.weight.shape)) ** 0.5)
        nn.init.zeros_(module.bias)
    elif isinstance(module, nn.LayerNorm):
        module.eps = BERT_EPS
