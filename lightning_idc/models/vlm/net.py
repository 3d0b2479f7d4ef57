"""VLMNet: a stock transformers vision-language model as the network of a captioner.

The images of a pair are encoded once (:meth:`VLMNet.encode`); prompts, answers and decoding then read these features:

1. :meth:`VLMNet.encode` runs the vision tower over B pairs,
2. :meth:`VLMNet.log_probs` scores K answers per pair, teacher-forced (``scoring.py`` has three exact methods), and
3. :meth:`VLMNet.start` and :meth:`VLMNet.step` decode token by token with a key-value cache.

Shapes: B pairs, K answers per pair, P prompt tokens, T answer tokens, D channels, V vocabulary.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lightning_idc.images.types import PairFeatures
from lightning_idc.models.vlm.checking import pick_scoring
from lightning_idc.models.vlm.chunked import chunked_log_probs
from lightning_idc.models.vlm.families.base import Family
from lightning_idc.models.vlm.scoring import SCORING_METHODS, plain, up_to_last, valid_first
from lightning_idc.models.vlm.vision_language import VisionLanguageModel, prompt_mask_of


@dataclass(frozen=True)
class CaptionSizes:
    """Caption lengths of a batch, available without reading the mask from the device.

    Args:
        tokens: tokens of the batch, ``(B, K, T)``.
        mask: caption mask of the batch, bool ``(B, K, T)``.
        longest: maximum number of tokens of all captions of a pair together.
    """

    tokens: Tensor
    mask: Tensor
    longest: int


@dataclass
class PromptState:
    """State of incremental decoding, one row per hypothesis.

    Args:
        cache: keys and values of the prompt and of the generated tokens.
        mask: bool ``(N, P + generated)``, False at padding; None where no prompt is padded.
        last_position: position of the prompt's last token, ``(N, 1)`` or ``(N, 3, 1)``.
        first_logits: logits after the prompt, ``(N, V)``.
        num_generated: tokens generated so far, the begin token included.
    """

    cache: Any
    mask: Tensor | None
    last_position: Tensor
    first_logits: Tensor
    num_generated: int = 0

    def select(self, rows: Tensor) -> PromptState:
        """The hypotheses ``rows``, in that order."""
        self.cache.reorder_cache(rows)
        mask = None if self.mask is None else self.mask[rows]
        return PromptState(self.cache, mask, self.last_position[rows], self.first_logits[rows], self.num_generated)


class VLMNet(VisionLanguageModel):
    """Scores and decodes the answers of a vision-language model.

    Args:
        model: the transformers model.
        processor: its processor.
        family: the code that depends on the type of the model.
        scoring: method that scores K answers after one prompt: ``packed``, ``cached``, ``plain``, or ``auto``, which
            calls :func:`~lightning_idc.models.vlm.checking.pick_scoring` before the first use.
    """

    def __init__(self, model: Any, processor: Any, family: Family, scoring: str = "auto") -> None:
        super().__init__(model, processor, family)
        self.scoring = scoring

    # ---- scoring answers --------------------------------------------------------------------------------

    def log_probs(self, features: PairFeatures, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Log-probabilities ``(B, K, T - 1)`` of all but the first of ``tokens (B, K, T)``, teacher-forced.

        Args:
            features: B pairs.
            tokens: K answers per pair.
            mask: bool ``(B, K, T)``. Tokens after the last True of an answer are padding: they are not computed and
                get 0. None for no padding.
        """
        targets = tokens[..., 1:]
        if mask is None or tokens.shape[1] == 1:
            states = self.answer_states(features, tokens[..., :-1])
            # (B, K, T - 1, D) -> (B * K * (T - 1),) -> (B, K, T - 1)
            log_probs = self._log_probs(states.flatten(0, 2), targets.flatten()).view(targets.shape)
            return log_probs if mask is None else log_probs.masked_fill(~up_to_last(mask[..., 1:]), 0.0)
        valid = up_to_last(mask[..., 1:])
        longest = self._longest(features, tokens, mask, valid)
        states = self.answer_states(features, tokens[..., :-1], valid, longest)
        # the head, the largest layer, only sees valid tokens: (B, K * (T - 1), D) -> (B, longest, D)
        indices = valid_first(valid, longest)
        valid_states = states.flatten(1, 2).gather(1, indices[..., None].expand(-1, -1, states.shape[-1]))
        log_probs = self._log_probs(valid_states.flatten(0, 1), targets.flatten(1).gather(1, indices).flatten())
        flat = log_probs.new_zeros(len(tokens), valid[0].numel()).scatter(1, indices, log_probs.view(indices.shape))
        return flat.view(targets.shape).masked_fill(~valid, 0.0)

    @staticmethod
    def _longest(features: PairFeatures, tokens: Tensor, mask: Tensor, valid: Tensor) -> int:
        """Upper bound of the number of tokens of all answers of a pair together, if possible without a sync."""
        captions: CaptionSizes | None = features.sizes.get("captions")
        if captions is None:
            # at least one token, since other processes may wait for sharded weights
            return max(1, int(valid.flatten(1).sum(-1).max()))
        is_batch = tokens is captions.tokens and mask is captions.mask
        return max(1, captions.longest) if is_batch else valid[0].numel()

    def logits(self, features: PairFeatures, tokens: Tensor) -> Tensor:
        """Logits ``(B, K, T, V)`` of the token after each of ``tokens (B, K, T)``."""
        return self.lm_logits(self.answer_states(features, tokens))

    def answer_states(
        self, features: PairFeatures, tokens: Tensor, valid: Tensor | None = None, longest: int | None = None
    ) -> Tensor:
        """Hidden states ``(B, K, T, D)`` after each of ``tokens (B, K, T)``.

        Args:
            features: B pairs.
            tokens: K answers per pair; pairs with fewer answers are padded.
            valid: bool ``(B, K, T)``, a prefix of each answer; the states of other tokens are 0. All when None.
            longest: upper bound of the tokens of all answers of a pair together; K * T when None.
        """
        # a single answer has nothing to share, and its two-dimensional mask works with any attention implementation
        score = plain if tokens.shape[1] == 1 else SCORING_METHODS[self.scoring_method]
        return score(self, features, tokens, valid, longest)

    @property
    def scoring_method(self) -> str:
        """Name of the scoring method of several answers; resolves ``auto``."""
        if self.scoring == "auto":
            # the check runs the stock model with a cache, and only once
            with torch.compiler.set_stance("force_eager") if self.is_compiled else nullcontext():
                self.scoring = pick_scoring(self)
        return self.scoring

    def _log_probs(self, states: Tensor, targets: Tensor) -> Tensor:
        if self.has_plain_head:
            with self.precision():
                return chunked_log_probs(states, self.lm_head, targets)
        return -nn.functional.cross_entropy(states.float(), targets, reduction="none")

    # ---- decoding ---------------------------------------------------------------------------------------

    def start(self, features: PairFeatures) -> PromptState:
        """State after the prompt."""
        cache, states = self.prefill(features)
        return PromptState(
            cache, prompt_mask_of(features), features.extras["positions"][..., -1:], self.lm_logits(states)[:, -1]
        )

    def step(self, state: PromptState, tokens: Tensor) -> Tensor:
        """Logits ``(N, V)`` after tokens ``(N,)``; advances the state. The first call takes begin tokens."""
        num_generated, state.num_generated = state.num_generated, state.num_generated + 1
        if num_generated == 0:
            return state.first_logits
        if state.mask is not None:
            state.mask = torch.cat([state.mask, state.mask.new_ones(len(tokens), 1)], 1)
        positions = state.last_position + num_generated
        return self.lm_logits(self.hidden_states(tokens[:, None], state.mask, positions, cache=state.cache))[:, -1]
