"""Decoding with a static cache: tensors of one shape at every step, so that the step is compiled once.

A cache that grows with every token changes the shapes of each step; every operator is then launched from Python. With
``cache_implementation: static``, an option of the same name in transformers' ``generate``:

1. :meth:`StaticDecoding.start` runs the prompts as :class:`~lightning_idc.models.vlm.net.VLMNet` does and copies their
   keys and values into buffers of a fixed size,
2. :meth:`StaticDecoding.step` writes tokens, mask and positions into these buffers and runs one graph, which a GPU
   replays as a CUDA graph, and
3. :meth:`StaticState.select` moves the selected hypotheses to the first rows; the other rows are computed and ignored.

Shapes: N rows and L tokens of the buffers, M of the rows in use, P prompt tokens, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from lightning_idc.images.types import PairFeatures
from lightning_idc.models.vlm.net import VLMNet
from lightning_idc.utils.errors import ConfigError

LENGTH_MULTIPLE = 64
"""Buffers hold a multiple of this number of tokens, so that prompts of similar lengths share a graph."""


@dataclass
class StaticBuffers:
    """Tensors of a decoding step, at fixed addresses.

    Args:
        cache: ``StaticCache`` of transformers with N rows and L tokens.
        tokens: last token of each row, ``(N,)``.
        mask: bool ``(N, L)``, True at the tokens that exist and are not padding.
        positions: position of the last token, ``(N, 1)`` or ``(N, 3, 1)``.
    """

    cache: Any
    tokens: Tensor
    mask: Tensor
    positions: Tensor

    @classmethod
    def like(cls, config: Any, prompt_cache: Any, positions: Tensor, num_rows: int, length: int) -> Self:
        """Empty buffers.

        Args:
            config: configuration of the language model.
            prompt_cache: cache of prompts with as many layers and heads.
            positions: positions of one token per prompt, ``(B, 1)`` or ``(B, 3, 1)``.
            num_rows: N.
            length: L.
        """
        from transformers import StaticCache

        cache: Any = StaticCache(config=config, max_cache_len=length)
        for layer, prompts in zip(cache.layers, prompt_cache.layers, strict=True):
            layer.lazy_initialization(
                *(part[:1].expand(num_rows, -1, -1, -1) for part in (prompts.keys, prompts.values))
            )
        return cls(
            cache=cache,
            tokens=torch.zeros(num_rows, dtype=torch.long, device=positions.device),
            mask=torch.zeros(num_rows, length, dtype=torch.bool, device=positions.device),
            positions=positions[:1].expand(num_rows, *positions.shape[1:]).clone(),
        )

    def fits(self, prompt_cache: Any, num_rows: int, length: int) -> bool:
        """Whether prompts of such a cache can be decoded in these buffers."""
        keys, prompts = self.cache.layers[0].keys, prompt_cache.layers[0].keys
        return (
            self.mask.shape[0] >= num_rows
            and self.mask.shape[1] >= length
            and (keys.dtype, keys.device) == (prompts.dtype, prompts.device)
        )

    def fill(self, prompt_cache: Any, prompt_mask: Tensor, positions: Tensor) -> None:
        """Copy B prompts into the first rows and clear everything else."""
        num_pairs, length = prompt_mask.shape
        # a value that is not finite would spread even from tokens that the mask hides
        self.cache.reset()
        for layer, prompts in zip(self.cache.layers, prompt_cache.layers, strict=True):
            layer.keys[:num_pairs, :, :length] = prompts.keys
            layer.values[:num_pairs, :, :length] = prompts.values
            layer.cumulative_length.fill_(length)
        self.mask.zero_()
        self.mask[:num_pairs, :length] = prompt_mask
        self.positions[:num_pairs] = positions

    def select(self, rows: Tensor) -> None:
        """Copy the rows ``(M,)`` to the first M rows; rows may repeat."""
        parts = [self.mask, self.positions]
        for layer in self.cache.layers:
            parts += [layer.keys, layer.values]
        for part in parts:
            part[: len(rows)] = part[rows]


@dataclass
class StaticState:
    """State of incremental decoding in static buffers, whose first rows are the hypotheses.

    Args:
        buffers: the buffers; only the state that :meth:`StaticDecoding.start` returned last may be used.
        prompt_length: P.
        first_logits: logits after the prompt, ``(M, V)``.
        num_generated: tokens generated so far, the begin token included.
    """

    buffers: StaticBuffers
    prompt_length: int
    first_logits: Tensor
    num_generated: int = 0

    @torch.inference_mode(False)
    @torch.no_grad()
    def select(self, rows: Tensor) -> StaticState:
        """The hypotheses ``rows``, in that order."""
        self.buffers.select(rows)
        return replace(self, first_logits=self.first_logits[rows])


# a copy of a network, such as a reference policy, does not copy them, and they are freed with their network
_buffers: WeakKeyDictionary[VLMNet, StaticBuffers] = WeakKeyDictionary()


class StaticDecoding:
    """The decoding interface of a :class:`VLMNet`, with a static cache.

    The buffers of a network are reused until a batch has more rows or longer prompts.

    Args:
        net: the network.
        rows_per_pair: maximum number of hypotheses per pair.
        max_length: maximum number of generated tokens.
        compile_config: arguments of :func:`torch.compile` for the step; None does not compile it.
    """

    def __init__(
        self, net: VLMNet, rows_per_pair: int, max_length: int, compile_config: Mapping[str, Any] | None = None
    ) -> None:
        self.net, self.rows_per_pair, self.max_length = net, rows_per_pair, max_length
        # another call with equal arguments uses the graphs of the first
        self._logits = next_logits if compile_config is None else torch.compile(next_logits, **compile_config)

    def encode(self, *arguments: Any, **options: Any) -> PairFeatures:
        return self.net.encode(*arguments, **options)

    def logits(self, features: PairFeatures, tokens: Tensor) -> Tensor:
        return self.net.logits(features, tokens)

    def start(self, features: PairFeatures) -> StaticState:
        """State after the prompt."""
        prompt_cache, states = self.net.prefill(features)
        prompt_mask, positions = features.extras["prompt_mask"], features.extras["positions"][..., -1:]
        num_rows = len(features) * self.rows_per_pair
        length = prompt_mask.shape[1] + self.max_length
        # tensors made in inference mode could not be changed in a training step, and have graphs of their own
        with torch.inference_mode(False), torch.no_grad():
            buffers = _buffers.get(self.net)
            if buffers is None or not buffers.fits(prompt_cache, num_rows, length):
                num_rows, length = _grown(buffers, num_rows, length)
                _buffers.pop(self.net, None)
                config = self.net.model.config.get_text_config()
                buffers = _buffers[self.net] = StaticBuffers.like(config, prompt_cache, positions, num_rows, length)
            buffers.fill(prompt_cache, prompt_mask, positions)
        return StaticState(buffers, prompt_mask.shape[1], self.net.lm_logits(states)[:, -1])

    @torch.inference_mode(False)
    @torch.no_grad()
    def step(self, state: StaticState, tokens: Tensor) -> Tensor:
        """Logits ``(M, V)`` after tokens ``(M,)``; advances the state. The first call takes begin tokens."""
        num_generated, state.num_generated = state.num_generated, state.num_generated + 1
        if num_generated == 0:
            return state.first_logits
        buffers = state.buffers
        buffers.tokens[: len(tokens)] = tokens
        buffers.mask[:, state.prompt_length + num_generated - 1] = True
        buffers.positions += 1
        torch.compiler.cudagraph_mark_step_begin()
        logits = self._logits(self.net, buffers.tokens, buffers.mask, buffers.positions, buffers.cache)
        return logits[: len(tokens)]


def _grown(buffers: StaticBuffers | None, num_rows: int, length: int) -> tuple[int, int]:
    """Rows and length of new buffers, which hold what the previous ones held."""
    if buffers is not None:
        num_rows, length = max(num_rows, buffers.mask.shape[0]), max(length, buffers.mask.shape[1])
    return num_rows, padded_length(length)


def padded_length(num_tokens: int) -> int:
    """Length of the buffers for a number of tokens, the prompt's included."""
    return math.ceil(num_tokens / LENGTH_MULTIPLE) * LENGTH_MULTIPLE


def cache_bytes(config: Any, num_rows: int, num_tokens: int, bytes_per_value: int) -> int:
    """Bytes of the keys and values of static buffers.

    Args:
        config: configuration of the language model.
        num_rows: number of hypotheses of a batch.
        num_tokens: maximum number of tokens of a hypothesis, the prompt's included.
        bytes_per_value: bytes of a key's element.
    """
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * heads * head_dim * num_rows * padded_length(num_tokens) * bytes_per_value


def next_logits(net: VLMNet, tokens: Tensor, mask: Tensor, positions: Tensor, cache: Any) -> Tensor:
    """Logits ``(N, V)`` after one token per row, ``(N,)``; extends the cache."""
    return net.lm_logits(net.hidden_states(tokens[:, None], mask, positions, cache=cache))[:, -1]


def check_static_cache(model: Any) -> None:
    """Check that a model can decode with a static cache.

    Raises:
        ConfigError: a layer of the model has no cache of one size with full attention, or the attention does not take
            a mask.
    """
    from transformers import StaticCache
    from transformers.cache_utils import StaticLayer

    name, config = model.config.model_type, model.config.get_text_config()
    try:
        layers = StaticCache(config=config, max_cache_len=1).layers
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"cache_implementation is static, but transformers has no such cache for {name} ({error}); use dynamic"
        ) from error
    others = sorted({type(layer).__name__ for layer in layers if type(layer) is not StaticLayer})
    if others:
        raise ConfigError(
            f"cache_implementation is static, but {name} has layers without full attention ({', '.join(others)}); use "
            "dynamic"
        )
    attention = config._attn_implementation
    if "flash" in attention:
        raise ConfigError(f"cache_implementation is static, but {attention} takes no mask; use attn: sdpa, or dynamic")


def compile_arguments(model: Any, compile_config: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Arguments of torch.compile for the decoding step; None if it is not compiled.

    Args:
        model: model of transformers.
        compile_config: arguments of transformers' ``CompileConfig``. When None, transformers' defaults on a GPU, and
            nothing is compiled elsewhere.

    Raises:
        ConfigError: an argument is unknown, or the quantized weights of the model cannot be compiled.
    """
    from transformers import CompileConfig

    quantizer = getattr(model, "hf_quantizer", None)
    can_compile = quantizer is None or quantizer.is_compileable
    if compile_config is None and (model.device.type not in ("cuda", "xpu") or not can_compile):
        return None
    if not can_compile:
        raise ConfigError(f"compile_config is set, but weights of {type(quantizer).__name__} cannot be compiled")
    try:
        return CompileConfig(**{"fullgraph": True, **(compile_config or {})}).to_dict()
    except TypeError as error:
        raise ConfigError(f"compile_config takes the arguments of transformers' CompileConfig: {error}") from error
