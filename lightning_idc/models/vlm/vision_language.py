"""VisionLanguageModel: a stock transformers model whose images are encoded once for any number of prompts and answers.

1. :meth:`VisionLanguageModel.encode` runs the vision tower over B pairs,
2. :meth:`VisionLanguageModel.hidden_states` runs the language model over prompts and answers, which read these
   features in place of images, and
3. :meth:`VisionLanguageModel.lm_logits` gives the logits of the vocabulary.

:class:`~lightning_idc.models.vlm.net.VLMNet` scores and decodes answers with it.

Shapes: B pairs, P prompt tokens, N rows of S tokens, D channels, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from inspect import signature
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from lightning_idc.images.types import PairFeatures
from lightning_idc.models.vlm.families.base import (
    INDICATORS,
    TOKEN_TYPES,
    Family,
    by_pair,
    image_token,
    media_tokens,
)
from lightning_idc.models.vlm.feature_rewrite import (
    BlockRewrite,
    BlockRewriter,
    FeatureRewrite,
    FeatureRewriter,
    TowerHooks,
)
from lightning_idc.models.vlm.tying import untie_differing
from lightning_idc.models.vlm.windows import attend_segments_at_once
from lightning_idc.utils.errors import ConfigError

LOGIT_SCALES = ("final_logit_softcapping", "logit_scale", "logits_scaling", "output_multiplier_scale")
"""Settings of models that transform their logits after the head; such a model must compute its logits itself."""


class StoresFeatures(Protocol):
    """A store of the features of images, such as ``FeatureCache`` of :mod:`lightning_idc.data.store.feature_store`."""

    def rows(
        self, images: Tensor | Sequence[Tensor], encode: Callable[[list[int]], Tensor | Sequence[Tensor]]
    ) -> list[Tensor]:
        """Features of each image; ``encode`` computes those of some rows."""


class VisionLanguageModel(nn.Module):
    """A stock transformers model whose prompts contain the encoded images of a pair.

    Args:
        model: the transformers model.
        processor: its processor.
        family: the code that depends on the type of the model.
    """

    def __init__(self, model: Any, processor: Any, family: Family) -> None:
        super().__init__()
        self.model, self.processor, self.family = model, processor, family
        self.base_name: str | None = None
        """Folder or hub id that the model came from."""
        self.autocast_dtype: torch.dtype | None = None
        """Precision of the frozen weights where the trainable ones are float32."""
        self.media_tokens = frozenset(media_tokens(model.config))
        """Ids of the placeholders of images, videos and sound."""
        self.feature_cache: StoresFeatures | None = None
        """Cache of the image features of a frozen tower, or None to compute them."""
        self.rewriters: list[TowerHooks] = []
        """Adapters in the vision tower."""
        self.is_compiled = False
        """Whether :func:`~lightning_idc.models.vlm.compiling.compile_layers` has compiled the layers."""
        self.compile_later: tuple[nn.Module, ...] = ()
        """Layers that are compiled from the second batch on."""
        self._has_encoded = False
        self._forward_arguments = frozenset(signature(model.forward).parameters)
        text_config = model.config.get_text_config().to_dict()
        self._scales_logits = any(text_config.get(name) not in (None, 1.0) for name in LOGIT_SCALES)
        self.register_load_state_dict_pre_hook(untie_differing)
        attend_segments_at_once(model)

    # ---- images -----------------------------------------------------------------------------------------

    def encode(
        self,
        images: Sequence[Tensor] | Tensor,
        prompt_ids: Tensor,
        prompt_mask: Tensor,
        token_types: Mapping[str, Tensor] | None = None,
        pixels: Mapping[str, Tensor] | None = None,
        positions: Tensor | None = None,
        sizes: Mapping[str, Any] | None = None,
    ) -> PairFeatures:
        """Run the vision tower, once per pair.

        Args:
            images: B pairs, uint8 ``(2, 3, H, W)`` each; H and W may differ unless it is one tensor.
            prompt_ids: prompts with the placeholders of their images, padded on the left, ``(B, P)``.
            prompt_mask: bool ``(B, P)``, False at padding.
            token_types: other per-token inputs of the processor, ``(B, P)`` each.
            pixels: result of :meth:`Family.pixels`, if the data loader has prepared it; computed when None.
            positions: positions of the prompt tokens, from :meth:`Family.positions`; computed when None.
            sizes: sizes of the batch, computed by ``collate``; read from the device when None.
        """
        if self._has_encoded:
            for layer in self.compile_later:
                layer.compile(fullgraph=True, dynamic=True)
            self.compile_later = ()
        self._has_encoded = self.is_compiled
        sizes = dict(sizes or {})
        if pixels is None:
            pixels = self.family.pixels(self.model, self.processor, list(images))
        device = prompt_ids.device
        pixels = {
            name: value.to(
                device, self._tower_dtype if name.startswith("pixel") and value.is_floating_point() else None
            )
            for name, value in pixels.items()
        }
        arguments = pixels | sizes.pop("tower", {})
        if not isinstance(images, Tensor):
            num_features = (prompt_ids == image_token(self.model.config)).sum(-1).tolist()
        elif "features" in sizes:
            num_features = [sizes["features"]] * len(images)
        else:
            # images of one size have equally many placeholders: one sync with the device instead of B
            num_features = [int((prompt_ids[0] == image_token(self.model.config)).sum())] * len(images)
        if self.feature_cache is None:
            with self._rewriting(arguments, len(images)), self.precision():
                memory, mask, extras = self.family.image_features(self.model, arguments, num_features)
        else:
            memory, mask, extras = self._cached_features(self.feature_cache, images, arguments, num_features)
        if "image_grid_thw" in pixels:
            # `arguments` may have the grid on the CPU
            extras["grid"] = pixels["image_grid_thw"].view(len(images), -1, 3)
        encoded = PairFeatures(memory, mask, extras)
        features = self.with_prompt(encoded, prompt_ids, prompt_mask, token_types, positions)
        features.sizes = sizes
        return features

    def with_prompt(
        self,
        features: PairFeatures,
        prompt_ids: Tensor,
        prompt_mask: Tensor,
        token_types: Mapping[str, Tensor] | None = None,
        positions: Tensor | None = None,
    ) -> PairFeatures:
        """Features of encoded pairs with other prompts.

        Args:
            features: B pairs.
            prompt_ids: see :meth:`encode`.
            prompt_mask: see :meth:`encode`.
            token_types: see :meth:`encode`.
            positions: see :meth:`encode`.
        """
        if positions is None:
            positions = self.family.positions(self.model, prompt_ids, prompt_mask, features.extras)
        image_extras = {name: value for name, value in features.extras.items() if name not in TOKEN_TYPES}
        prompt = {"prompt_ids": prompt_ids, "prompt_mask": prompt_mask, "positions": positions, **(token_types or {})}
        # `sizes` is omitted: it describes the prompts of the collated batch
        return PairFeatures(features.memory, features.mask, {**image_extras, **prompt})

    def _cached_features(
        self,
        cache: StoresFeatures,
        images: Sequence[Tensor] | Tensor,
        arguments: dict[str, Any],
        num_features: Sequence[int],
    ) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
        """Result of :meth:`Family.image_features`; pairs that are not in the cache are computed and added.

        The features of a pair are one array ``(N, D)``, or ``(N, D + deepstack layers * D)``.
        """

        def encode(rows: list[int]) -> list[Tensor]:
            inputs = arguments
            if len(rows) < len(images):
                pixels = self.family.pixels(self.model, self.processor, [images[row].cpu() for row in rows])
                inputs = {name: value.to(arguments[name]) for name, value in pixels.items()}
            with self.precision():
                memory, mask, extras = self.family.image_features(
                    self.model, inputs, [num_features[row] for row in rows]
                )
            if INDICATORS in extras:
                raise ConfigError(f"CacheFeatures does not store the {INDICATORS} of this model; leave it out")
            layers = [extras[f"deepstack{i}"] for i in range(sum(name.startswith("deepstack") for name in extras))]
            features = torch.cat([memory, *layers], -1)
            if mask is None:
                return list(features)
            return [pair[is_valid] for pair, is_valid in zip(features, mask, strict=True)]

        if self.family.returns_list is None:
            encode([0])  # learns in which form the model returns its features
        features, mask = by_pair(cache.rows(images, encode), num_features)
        width = self.model.get_input_embeddings().embedding_dim
        memory, *layers = features.to(self._tower_dtype).split(width, -1)
        return memory, mask, {f"deepstack{i}": layer for i, layer in enumerate(layers)}

    @property
    def image_encoder(self) -> nn.Module:
        """Module with everything that image features depend on: the tower, the projector and their parameters."""
        encoder = nn.Module()
        for name, part in self.model.model.named_children():
            if f"model.{name}" not in self.family.language:
                encoder.add_module(name, part)
        for name, parameter in self.model.model.named_parameters(recurse=False):
            encoder.register_parameter(name, parameter)
        return encoder

    @property
    def image_settings(self) -> str:
        """Settings of the image processor, on which image features depend as well, as JSON."""
        settings: str = self.processor.image_processor.to_json_string()
        return settings

    @property
    def _tower_dtype(self) -> torch.dtype:
        tower = self.model.get_submodule(self.family.vision[0])
        return next(p.dtype for p in tower.parameters() if p.is_floating_point())

    def precision(self) -> AbstractContextManager[Any]:
        """Autocast, where frozen and trainable weights differ in dtype and no Trainer has opened one."""
        device = next(self.model.parameters()).device.type
        if self.autocast_dtype is None or torch.is_autocast_enabled(device):
            return nullcontext()
        return torch.autocast(device, self.autocast_dtype)

    # ---- the language model -----------------------------------------------------------------------------

    def hidden_states(
        self,
        ids: Tensor,
        mask: Tensor | None,
        positions: Tensor,
        features: PairFeatures | None = None,
        repeats: int = 1,
        cache: Any = None,
        logits_to_keep: int = 1,
        token_types: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """Run the language model: last hidden states ``(N, logits_to_keep, D)``, which :meth:`lm_logits` reads.

        Models that transform their logits after the head return the logits instead.

        Args:
            ids: ``(N, S)``.
            mask: bool ``(N, past + S)``, or additive ``(N, 1, S, S)``; None where nothing is padding.
            positions: ``(N, S)`` or ``(N, 3, S)``.
            features: features of the images whose placeholders are among the ids; None without placeholders.
            repeats: number of consecutive rows of ids per pair of features.
            cache: keys and values of the past, extended by those of the ids.
            logits_to_keep: number of tokens, counted from the end.
            token_types: token types of the ids, ``(N, S)`` each.
        """
        arguments: dict[str, Any] = {
            "input_ids": ids,
            "attention_mask": mask,
            "position_ids": positions if positions.ndim == 2 else positions.transpose(0, 1),
            "past_key_values": cache,
            "use_cache": cache is not None,
            **(token_types or {}),
        }
        if features is not None and self.family.only_embeds:
            arguments |= {"input_ids": None, "inputs_embeds": self._embeddings(ids, features, repeats)}
        elif features is not None:
            arguments |= self.family.feature_arguments(features.memory, features.mask, features.extras, repeats)
        # a cache grows with every token and has a slot per layer: compiled layers would be recompiled each time
        is_eager = self.is_compiled and cache is not None and not torch.compiler.is_compiling()
        stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager") if is_eager else nullcontext()
        with self.precision(), stance:
            if self.has_plain_head:
                return self.model.model(**arguments).last_hidden_state[:, -logits_to_keep:]
            if "logits_to_keep" in self._forward_arguments:
                arguments["logits_to_keep"] = logits_to_keep
            return self.model(**arguments).logits[:, -logits_to_keep:]

    def _embeddings(self, ids: Tensor, features: PairFeatures, repeats: int) -> Tensor:
        """Embeddings ``(N, S, D)`` of ids, with image features in place of the embeddings of placeholders."""
        memory, mask = features.memory, features.mask
        if mask is None:
            rows = memory.repeat_interleave(repeats, 0).flatten(0, 1)
        else:
            pairs = [pair[is_valid] for pair, is_valid in zip(memory, mask, strict=True)]
            rows = torch.cat([pair for pair in pairs for _ in range(repeats)])
        embeddings: Tensor = self.model.get_input_embeddings()(ids)
        is_image = (ids == image_token(self.model.config))[..., None]
        return embeddings.masked_scatter(is_image, rows.to(embeddings.dtype))

    def lm_logits(self, states: Tensor) -> Tensor:
        """Logits of :meth:`hidden_states`."""
        if not self.has_plain_head:
            return states
        with self.precision():
            return self.lm_head(states)

    @property
    def lm_head(self) -> nn.Linear:
        """Layer from hidden states to logits."""
        return self.model.get_output_embeddings()

    @property
    def has_plain_head(self) -> bool:
        """Whether the logits are the unmodified output of the head."""
        return not self._scales_logits and type(self.lm_head) is nn.Linear

    def additive_mask(self, mask: Tensor) -> Tensor:
        """A bool attention mask as 0 and the smallest number of the attention's dtype."""
        device = mask.device.type
        dtype = self.model.get_input_embeddings().weight.dtype
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
        return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, torch.finfo(dtype).min)

    def token_types(self, features: PairFeatures, num_answer_tokens: int, repeats: int = 1) -> dict[str, Tensor]:
        """Token types of each prompt, ``repeats`` times, and of ``num_answer_tokens`` tokens behind it."""
        extended = {}
        for name in TOKEN_TYPES:
            if name in features.extras and name in self._forward_arguments:
                prompt = features.extras[name].repeat_interleave(repeats, 0)
                # `token_type_ids` either mark images with 1, or, all 0, set the prompt apart from the answer (1)
                is_prefix_mask = (prompt == 0).all(-1, keepdim=True)
                answer = is_prefix_mask if name == "token_type_ids" else prompt.new_zeros(1, 1)
                extended[name] = torch.cat([prompt, answer.to(prompt).expand(len(prompt), num_answer_tokens)], 1)
        return extended

    def prefill(self, features: PairFeatures) -> tuple[Any, Tensor]:
        """Cache of the prompts, and the hidden state of their last token, ``(B, 1, D)``."""
        from transformers import DynamicCache

        cache = DynamicCache(config=self.model.config.get_text_config())
        ids, positions = features.extras["prompt_ids"], features.extras["positions"]
        mask, types = prompt_mask_of(features), self.token_types(features, 0)
        return cache, self.hidden_states(ids, mask, positions, features, cache=cache, token_types=types)

    # ---- adapters and strategies ------------------------------------------------------------------------

    @property
    def feature_width(self) -> int:
        return self.family.width(self.model)

    @property
    def feature_depth(self) -> int:
        return self.family.depth(self.model)

    @property
    def recomputes(self) -> bool:
        return bool(self.model.is_activation_checkpointing)

    def rewrite_features(self, layers: Sequence[int], rewrite: FeatureRewrite) -> None:
        """Replace the output of the tower by ``rewrite`` of the features ``(B, 2, L, D)`` of each of ``layers``."""
        self.rewriters.append(FeatureRewriter(*self._blocks_and_gate(), layers, rewrite))

    def rewrite_blocks(self, layers: Sequence[int], rewrite: BlockRewrite) -> None:
        """Replace the states ``(B, 2, L, D)`` after ``layers[i]`` of the tower by ``rewrite(i, states)``."""
        self.rewriters.append(BlockRewriter(*self._blocks_and_gate(), layers, self.feature_depth, rewrite))

    def _blocks_and_gate(self) -> tuple[nn.ModuleList, nn.Module, bool]:
        """Layers of the tower, the module behind them, and whether the features are its output."""
        blocks, gate = (self.model.get_submodule(path) for path in (self.family.blocks, self.family.gate))
        return blocks, gate, self.family.gate_is_output

    @contextmanager
    def stock_features(self) -> Iterator[None]:
        """Context in which the states of the tower are not replaced."""
        with ExitStack() as stack:
            for rewriter in self.rewriters:
                stack.enter_context(rewriter.disabled())
            yield

    @contextmanager
    def _rewriting(self, pixels: dict[str, Tensor], num_pairs: int) -> Iterator[None]:
        with ExitStack() as stack:
            if self.rewriters:
                positions = self.family.patches_per_pair(pixels) or [1] * num_pairs
                for rewriter in self.rewriters:
                    stack.enter_context(rewriter.encoding(positions))
            yield

    @property
    def unused_modules(self) -> tuple[str, ...]:
        """Paths within ``model`` of modules whose output is not used."""
        return tuple(self.family.unused(self.model))

    @property
    def language_modules(self) -> tuple[str, ...]:
        """Paths of the language model within :attr:`model`."""
        return self.family.language

    def units(self) -> list[nn.Module]:
        """Layers for sharding or compiling one by one."""
        return [part for part in self.model.modules() if type(part).__name__ in (self.model._no_split_modules or ())]


def prompt_mask_of(features: PairFeatures) -> Tensor | None:
    """Mask of the prompts; None if they are known to have no padding, so that the model can skip the check."""
    return features.extras["prompt_mask"] if features.sizes.get("is_padded", True) else None
