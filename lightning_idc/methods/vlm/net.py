"""A vision-language model as the network of a captioner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from lightning_idc.core.types import PairFeatures
from lightning_idc.errors import ConfigError
from lightning_idc.methods.m3diff.mdp import Rewrite
from lightning_idc.methods.vlm.chunked import chunked_log_probs
from lightning_idc.methods.vlm.families.base import TOKEN_TYPES, Family, image_token
from lightning_idc.methods.vlm.scoring import WAYS, plain, up_to_last
from lightning_idc.methods.vlm.tying import untie_what_differs

SCALED_HEADS = ("final_logit_softcapping", "logit_scale", "logits_scaling", "output_multiplier_scale")
"""Settings by which a model changes what its head gives; its logits then come from the model itself."""


@dataclass
class PromptState:
    """Cache of prompts and of what was said after them, one row per caption in the making."""

    cache: Any
    mask: Tensor
    position: Tensor
    first: Tensor
    said: int = 0

    def select(self, rows: Tensor) -> PromptState:
        self.cache.reorder_cache(rows)
        return PromptState(self.cache, self.mask[rows], self.position[rows], self.first[rows], self.said)


class VLMNet(nn.Module):
    """Stock transformers model between the pair and the library's scoring and decoding.

    Args:
        model: the model.
        processor: its processor.
        family: how it sees a pair.
        scoring: how K answers are scored after one prompt: ``packed``, ``cached``, ``plain``, or ``auto``, which asks
            :func:`~lightning_idc.methods.vlm.checking.pick_scoring` when it is first needed.
    """

    def __init__(self, model: Any, processor: Any, family: Family, scoring: str = "auto") -> None:
        super().__init__()
        self.model, self.processor, self.family, self.scoring = model, processor, family, scoring
        self.base_name: str | None = None
        """Folder or hub id that the model came from."""
        self.autocast_dtype: torch.dtype | None = None
        """Precision of the frozen weights where those that train are float32."""
        self._takes = frozenset(signature(model.forward).parameters)
        text = model.config.get_text_config().to_dict()
        self._bare = all(text.get(name) in (None, 1.0) for name in SCALED_HEADS)
        self._rewrite: Rewrite | None = None
        self._reads: list[int] = []
        self._seen: dict[int, Tensor] = {}
        self._rewrites = True
        self._places: list[int] = []
        self.register_load_state_dict_pre_hook(untie_what_differs)

    # ---- the pair ---------------------------------------------------------------------------------------

    def encode(
        self,
        images: Sequence[Tensor] | Tensor,
        prompt_ids: Tensor,
        prompt_mask: Tensor,
        types: Mapping[str, Tensor] | None = None,
        pixels: Mapping[str, Tensor] | None = None,
    ) -> PairFeatures:
        """Run the vision tower, once per pair.

        Args:
            images: B pairs, uint8 ``(2, 3, H, W)`` each; H and W may differ unless it is one tensor.
            prompt_ids: prompts with their placeholders of images, padded on the left, ``(B, P)``.
            prompt_mask: bool ``(B, P)``, False at padding.
            types: what else the processor says of the prompts' tokens, ``(B, P)`` each.
            pixels: what the family makes of the images, where the data loader has made it.
        """
        device = prompt_ids.device
        made = self.family.pixels(self.model, self.processor, list(images)) if pixels is None else pixels
        pixels = {
            name: value.to(device, self._tower_dtype if value.is_floating_point() else None)
            for name, value in made.items()
        }
        placeholders = prompt_ids == image_token(self.model.config)
        if isinstance(images, Tensor):
            # of equal size, so that no count has to come back from the device
            rows = [int(placeholders[0].sum())] * len(images)
        else:
            rows = placeholders.sum(-1).tolist()
        self._places = self.family.places(pixels) or [1] * len(images)
        try:
            with self.precision():
                memory, mask, extras = self.family.image_features(self.model, pixels, rows)
        finally:
            self._places = []
            self._seen.clear()
        return self.with_prompt(PairFeatures(memory, mask, extras), prompt_ids, prompt_mask, types)

    def with_prompt(
        self, features: PairFeatures, prompt_ids: Tensor, prompt_mask: Tensor, types: Mapping[str, Tensor] | None = None
    ) -> PairFeatures:
        """Features of encoded pairs behind other prompts.

        Args:
            features: B pairs.
            prompt_ids: as of :meth:`encode`.
            prompt_mask: as of :meth:`encode`.
            types: as of :meth:`encode`.
        """
        positions = self.family.positions(self.model, prompt_ids, prompt_mask, features.extras)
        kept = {name: value for name, value in features.extras.items() if name not in TOKEN_TYPES}
        prompt = {"prompt_ids": prompt_ids, "prompt_mask": prompt_mask, "positions": positions, **(types or {})}
        return PairFeatures(features.memory, features.mask, {**kept, **prompt})

    @property
    def _tower_dtype(self) -> torch.dtype:
        tower = self.model.get_submodule(self.family.vision[0])
        return next(p.dtype for p in tower.parameters() if p.is_floating_point())

    def precision(self) -> AbstractContextManager[Any]:
        """Autocast where frozen and trained weights differ in precision and no Trainer has opened one."""
        device = next(self.model.parameters()).device.type
        if self.autocast_dtype is None or torch.is_autocast_enabled(device):
            return nullcontext()
        return torch.autocast(device, self.autocast_dtype)

    # ---- the words --------------------------------------------------------------------------------------

    @property
    def head(self) -> nn.Linear:
        """From hidden states to logits."""
        return self.model.get_output_embeddings()

    @property
    def bare_head(self) -> bool:
        """Whether logits are the head's product with hidden states and nothing else."""
        return self._bare and type(self.head) is nn.Linear

    def additive(self, mask: Tensor) -> Tensor:
        """What a bool mask adds to the attention's logits."""
        kind = self.model.get_input_embeddings().weight.dtype
        device = mask.device.type
        if torch.is_autocast_enabled(device):
            kind = torch.get_autocast_dtype(device)
        return torch.zeros(mask.shape, dtype=kind, device=mask.device).masked_fill(~mask, torch.finfo(kind).min)

    def token_types(self, features: PairFeatures, length: int, repeats: int = 1) -> dict[str, Tensor]:
        """Types of the prompts' tokens, those of each pair ``repeats`` times, and of ``length`` tokens behind them."""
        found = {}
        for name in TOKEN_TYPES:
            if name in features.extras and name in self._takes:
                prompt = features.extras[name].repeat_interleave(repeats, 0)
                # types mark images, or, where they mark none, set the prompt (0) apart from what follows (1)
                behind = (prompt == 0).all(-1, keepdim=True) if name == "token_type_ids" else prompt.new_zeros(1, 1)
                found[name] = torch.cat([prompt, behind.to(prompt).expand(len(prompt), length)], 1)
        return found

    def states(
        self,
        ids: Tensor,
        mask: Tensor,
        positions: Tensor,
        features: PairFeatures | None = None,
        repeats: int = 1,
        cache: Any = None,
        keep: int = 1,
        types: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """What :meth:`finish` makes logits of, at the last ``keep`` tokens: ``(N, keep, D)``.

        Args:
            ids: ``(N, S)``.
            mask: bool ``(N, past + S)``, or additive ``(N, 1, S, S)``.
            positions: ``(N, S)`` or ``(N, 3, S)``.
            features: what the placeholders among the ids stand for; None where there are none.
            repeats: how often each pair's features stand among the ids, one after the other.
            cache: of the past, to which that of the ids is added.
            keep: number of tokens, counted from the end.
            types: of the ids' tokens.
        """
        arguments: dict[str, Any] = {
            "input_ids": ids,
            "attention_mask": mask,
            "position_ids": positions if positions.ndim == 2 else positions.transpose(0, 1),
            "past_key_values": cache,
            "use_cache": cache is not None,
            **(types or {}),
        }
        if features is not None:
            arguments |= self.family.feature_arguments(features.memory, features.mask, features.extras, repeats)
        with self.precision():
            if self.bare_head:
                return self.model.model(**arguments).last_hidden_state[:, -keep:]
            if "logits_to_keep" in self._takes:
                arguments["logits_to_keep"] = keep
            return self.model(**arguments).logits[:, -keep:]

    def finish(self, states: Tensor) -> Tensor:
        """Logits of :meth:`states`."""
        if not self.bare_head:
            return states
        with self.precision():
            return self.head(states)

    def read_prompt(self, features: PairFeatures) -> tuple[Any, Tensor]:
        """Cache of the prompts, and the state behind their last token, ``(B, 1, D)``."""
        from transformers import DynamicCache

        cache = DynamicCache(config=self.model.config.get_text_config())
        ids, mask, positions = (features.extras[name] for name in ("prompt_ids", "prompt_mask", "positions"))
        types = self.token_types(features, 0)
        return cache, self.states(ids, mask, positions, features, cache=cache, types=types)

    def answer_states(self, features: PairFeatures, tokens: Tensor, read: Tensor | None = None) -> Tensor:
        """States ``(B, K, T, D)`` after each of ``tokens (B, K, T)``; 0 after those that ``read (B, K, T)`` leaves out.

        Args:
            features: B pairs.
            tokens: K answers each, or fewer, the rest of which is padding.
            read: bool, the first tokens of each answer; all of them when None.
        """
        # one answer has nothing to share, and a mask of two dimensions leaves the choice of attention free
        way = plain if tokens.shape[1] == 1 else WAYS[self.way]
        return way(self, features, tokens, read)

    @property
    def way(self) -> str:
        """How several answers are scored."""
        if self.scoring == "auto":
            from lightning_idc.methods.vlm.checking import pick_scoring

            self.scoring = pick_scoring(self)
        return self.scoring

    def logits(self, features: PairFeatures, tokens: Tensor) -> Tensor:
        """Logits ``(B, K, T, V)`` of the token after each of ``tokens (B, K, T)``."""
        return self.finish(self.answer_states(features, tokens))

    def log_probs(self, features: PairFeatures, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Log-probabilities ``(B, K, T - 1)`` of all but the first of ``tokens (B, K, T)``, teacher-forced.

        Args:
            features: B pairs.
            tokens: K answers each.
            mask: bool ``(B, K, T)``, tokens that are asked for; what follows the last of them in an answer is padding,
                which costs nothing and gets 0. All of them when None.
        """
        targets = tokens[..., 1:]
        # the model runs even where nothing is asked for, as other processes may wait for its weights
        if mask is None or not mask.any() or bool(mask[..., 1:].all()):
            states = self.answer_states(features, tokens[..., :-1])
            return self._log_probs(states.flatten(0, 2), targets.flatten()).view(targets.shape)
        read = up_to_last(mask[..., 1:])
        # as many answers as any pair has
        count = int(read[..., 0].any(0).nonzero().max()) + 1
        states = self.answer_states(features, tokens[:, :count, :-1], read[:, :count])
        found = self._log_probs(states[read[:, :count]], targets[read])
        return found.new_zeros(targets.shape).masked_scatter(read, found)

    def _log_probs(self, states: Tensor, targets: Tensor) -> Tensor:
        if self.bare_head:
            with self.precision():
                return chunked_log_probs(states, self.head, targets)
        return -nn.functional.cross_entropy(states.float(), targets, reduction="none")

    def start(self, features: PairFeatures) -> PromptState:
        """State behind the prompt."""
        cache, states = self.read_prompt(features)
        extras = features.extras
        return PromptState(cache, extras["prompt_mask"], extras["positions"][..., -1:], self.finish(states)[:, -1])

    def step(self, state: PromptState, tokens: Tensor) -> Tensor:
        """Logits ``(N, V)`` after tokens ``(N,)``; advances the state. The first tokens stand for the prompt."""
        said, state.said = state.said, state.said + 1
        if said == 0:
            return state.first
        state.mask = torch.cat([state.mask, state.mask.new_ones(len(tokens), 1)], 1)
        return self.finish(self.states(tokens[:, None], state.mask, state.position + said, cache=state.cache))[:, -1]

    # ---- what adapters and strategies ask ---------------------------------------------------------------

    @property
    def feature_width(self) -> int:
        return self.family.width(self.model)

    @property
    def feature_depth(self) -> int:
        return self.family.depth(self.model)

    @property
    def recomputes(self) -> bool:
        return bool(self.model.is_activation_checkpointing)

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

    @contextmanager
    def stock_features(self) -> Iterator[None]:
        """Within, the tower's own features go on."""
        self._rewrites = False
        try:
            yield
        finally:
            self._rewrites = True

    def _keep(self, depth: int, block: nn.Module, inputs: Any, output: Any) -> None:
        if self._places:  # activation checkpointing runs the blocks once more, when nobody looks
            self._seen[depth] = output[0] if isinstance(output, tuple) else output

    def _rewritten(self, last: Tensor) -> Tensor:
        assert self._rewrite is not None
        if not self._places:
            raise ConfigError("MDP rewrites the features of pairs; call encode of the captioner, not the model itself")
        # rows of the tower are images, tiles or patches, but always the first image's before the second's
        seen = [x.reshape(-1, x.shape[-1]) for x in (*(self._seen[depth] for depth in self._reads[:-1]), last)]
        share = len(seen[-1]) // sum(self._places)
        counts = [share * places for places in self._places]
        if len(set(counts)) == 1:
            return self._rewrite([x.unflatten(0, (len(counts), 2, -1)) for x in seen]).reshape(last.shape)
        pieces = [x.split(counts) for x in seen]
        found: dict[int, Tensor] = {}
        for count in sorted(set(counts)):  # pairs of one grid go together
            pairs = [index for index, own in enumerate(counts) if own == count]
            stacked = [torch.stack([depth[i] for i in pairs]).unflatten(1, (2, -1)) for depth in pieces]
            found |= dict(zip(pairs, self._rewrite(stacked).flatten(1, 2), strict=True))
        return torch.cat([found[index] for index in range(len(counts))]).reshape(last.shape)

    def _replace_input(self, gate: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        if not self._rewrites:
            return None
        return (self._rewritten(inputs[0]), *inputs[1:])

    def _replace_output(self, gate: nn.Module, inputs: Any, output: Any) -> Any:
        if not self._rewrites:
            return output
        output.last_hidden_state = self._rewritten(output.last_hidden_state)
        return output

    @property
    def language_modules(self) -> tuple[str, ...]:
        """Paths of the language model within :attr:`model`."""
        return self.family.language

    def units(self) -> list[nn.Module]:
        """Layers that a strategy may shard one by one."""
        return [part for part in self.model.modules() if type(part).__name__ in (self.model._no_split_modules or ())]
