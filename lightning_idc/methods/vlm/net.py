"""A vision-language model as the network of a captioner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lightning_idc.core.types import PairFeatures
from lightning_idc.methods.m3diff.mdp import Rewrite
from lightning_idc.methods.vlm.families.base import Family
from lightning_idc.methods.vlm.scoring import Scoring, packed


@dataclass
class PromptState:
    """Keys and values of prompts and of what was said after them, one row per caption in the making."""

    cache: Any
    mask: Tensor
    position: Tensor
    first: Tensor
    said: int = 0

    def select(self, rows: Tensor) -> PromptState:
        self.cache.batch_select_indices(rows)
        return PromptState(self.cache, self.mask[rows], self.position[rows], self.first[rows], self.said)


class VLMNet(nn.Module):
    """Stock transformers model between the pair and the library's scoring and decoding.

    Args:
        model: the model.
        processor: its processor.
        family: how it sees a pair.
        scoring: how K answers are scored after one prompt.
    """

    def __init__(self, model: Any, processor: Any, family: Family, scoring: Scoring = packed) -> None:
        super().__init__()
        self.model, self.processor, self.family, self.scoring = model, processor, family, scoring
        self._rewrite: Rewrite | None = None
        self._reads: list[int] = []
        self._seen: dict[int, Tensor] = {}
        self._pairs = 0

    # ---- the pair ---------------------------------------------------------------------------------------

    def encode(self, images: Tensor, prompt_ids: Tensor, prompt_mask: Tensor) -> PairFeatures:
        """Run the vision tower, once per pair.

        Args:
            images: uint8 ``(B, 2, 3, H, W)``.
            prompt_ids: prompts with their placeholders of images, padded on the left, ``(B, P)``.
            prompt_mask: bool ``(B, P)``, False at padding.
        """
        kind = self.head.weight.dtype
        pixels = {
            name: value.to(images.device, kind if value.is_floating_point() else None)
            for name, value in self.family.pixels(self.processor, images).items()
        }
        self._pairs = len(images)
        try:
            memory, extras = self.family.look(self.model, pixels)
        finally:
            self._pairs = 0
            self._seen.clear()
        positions = self.family.positions(self.model, prompt_ids, prompt_mask, extras)
        extras |= {"prompt_ids": prompt_ids, "prompt_mask": prompt_mask, "positions": positions}
        return PairFeatures(memory, extras=extras)

    # ---- the words --------------------------------------------------------------------------------------

    @property
    def head(self) -> nn.Linear:
        """From hidden states to logits."""
        return self.model.get_output_embeddings()

    def additive(self, mask: Tensor) -> Tensor:
        """What a bool mask adds to the attention's logits."""
        kind = self.head.weight.dtype
        return torch.zeros(mask.shape, dtype=kind, device=mask.device).masked_fill(~mask, torch.finfo(kind).min)

    def hidden(
        self, ids: Tensor, mask: Tensor, positions: Tensor, features: PairFeatures | None, cache: Any = None
    ) -> Any:
        """The model up to its head.

        Args:
            ids: ``(N, S)``.
            mask: bool ``(N, past + S)``, or additive ``(N, 1, S, S)``.
            positions: ``(N, S)`` or ``(N, 3, S)``.
            features: what the placeholders among the ids stand for; None where there are none.
            cache: keys and values of the past, to which those of the ids are added.
        """
        told = {} if features is None else self.family.told(features.memory, features.extras)
        return self.model.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions if positions.ndim == 2 else positions.transpose(0, 1),
            past_key_values=cache,
            use_cache=cache is not None,
            **told,
        )

    def read_prompt(self, features: PairFeatures) -> Any:
        """Keys and values of the prompts up to, and without, their last token."""
        from transformers import DynamicCache

        cache = DynamicCache(config=self.model.config.get_text_config())
        ids, mask, positions = (features.extras[name][..., :-1] for name in ("prompt_ids", "prompt_mask", "positions"))
        self.hidden(ids, mask, positions, features, cache)
        return cache

    def logits(self, features: PairFeatures, tokens: Tensor) -> Tensor:
        """Logits ``(B, K, T, V)`` of the token after each of ``tokens (B, K, T)``."""
        return self.scoring(self, features, tokens)

    def start(self, features: PairFeatures) -> PromptState:
        """State before the prompt's last token."""
        extras = features.extras
        last = extras["prompt_ids"][:, -1]
        return PromptState(
            self.read_prompt(features), extras["prompt_mask"][:, :-1], extras["positions"][..., -1:], last
        )

    def step(self, state: PromptState, tokens: Tensor) -> Tensor:
        """Logits ``(N, V)`` after tokens ``(N,)``; advances the state."""
        ids = (tokens if state.said else state.first)[:, None]
        state.mask = torch.cat([state.mask, state.mask.new_ones(len(ids), 1)], 1)
        hidden = self.hidden(ids, state.mask, state.position + state.said, None, state.cache).last_hidden_state
        state.said += 1
        return self.head(hidden[:, -1])

    # ---- what adapters and strategies ask ---------------------------------------------------------------

    @property
    def feature_width(self) -> int:
        return self.family.width(self.model)

    @property
    def feature_depth(self) -> int:
        return self.family.depth(self.model)

    def rewrite_features(self, layers: Sequence[int], rewrite: Rewrite) -> None:
        """Send ``rewrite(features of the layers)``, each ``(B, 2, L, D)``, on in place of the last features."""
        self._rewrite, self._reads = rewrite, list(layers)
        blocks = self.model.get_submodule(self.family.blocks)
        for depth in self._reads[:-1]:
            blocks[depth - 1].register_forward_hook(partial(self._keep, depth))
        gate = self.model.get_submodule(self.family.gate)
        if self.family.gate_is_output:
            gate.register_forward_hook(self._replace_output)
        else:
            gate.register_forward_pre_hook(self._replace_input)

    def _keep(self, depth: int, block: nn.Module, inputs: Any, output: Any) -> None:
        if self._pairs:  # activation checkpointing runs the blocks once more, when nobody looks
            self._seen[depth] = output[0] if isinstance(output, tuple) else output

    def _rewritten(self, last: Tensor) -> Tensor:
        assert self._rewrite is not None
        seen = [self._seen[depth] for depth in self._reads[:-1]] + [last]
        # rows of the tower are images, tiles or patches, but always the first image's before the second's
        pairs = [x.reshape(self._pairs, 2, -1, x.shape[-1]) for x in seen]
        return self._rewrite(pairs).reshape(last.shape)

    def _replace_input(self, gate: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (self._rewritten(inputs[0]), *inputs[1:])

    def _replace_output(self, gate: nn.Module, inputs: Any, output: Any) -> Any:
        output.last_hidden_state = self._rewritten(output.last_hidden_state)
        return output

    @property
    def language_modules(self) -> tuple[str, ...]:
        """Paths of the language model within :attr:`model`."""
        return self.family.language

    def units(self) -> list[nn.Module]:
        """Layers that a strategy may shard one by one."""
        return [part for part in self.model.modules() if type(part).__name__ in (self.model._no_split_modules or ())]
