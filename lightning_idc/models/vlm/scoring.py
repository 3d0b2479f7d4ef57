"""Three exact methods that score K answers after one prompt and encode the images once.

All agree with K separate passes; ``checking.py`` tests which of them a model supports, and
``benchmarks/vlm_scoring.py`` measures their speed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lightning_idc.images.types import PairFeatures
from lightning_idc.models.vlm.vision_language import VisionLanguageModel, prompt_mask_of

Scoring = Callable[[VisionLanguageModel, PairFeatures, Tensor, Tensor | None, int | None], Tensor]
"""Maps network, features, tokens ``(B, K, T)``, their mask ``(B, K, T)`` and the maximum number of valid tokens of a
pair to hidden states ``(B, K, T, D)``."""


def up_to_last(mask: Tensor) -> Tensor:
    """True up to the last True along the last dimension.

    Example:
        >>> up_to_last(torch.tensor([False, True, False])).tolist()
        [True, True, False]
    """
    return mask.flip(-1).cummax(-1).values.flip(-1)


def valid_first(valid: Tensor, longest: int) -> Tensor:
    """Indices of the tokens of each pair, valid ones first and in their order, ``(B, longest)``.

    Args:
        valid: bool ``(B, K, T)``.
        longest: number of indices, at least the number of valid tokens of any pair.
    """
    return valid.flatten(1).int().argsort(dim=-1, descending=True, stable=True)[:, :longest]


def packed_mask(prompt_mask: Tensor, answer_index: Tensor) -> Tensor:
    """Attention mask of a prompt followed by several answers: bool ``(B, 1, P + N, P + N)``.

    The prompt is causal; a token of an answer attends to the prompt and to the earlier tokens of its answer.

    Args:
        prompt_mask: bool ``(B, P)``, False at padding.
        answer_index: index of the answer of each of the N tokens, from 1, ``(B, N)``.
    """
    num_pairs, prompt_length = prompt_mask.shape
    total = prompt_length + answer_index.shape[1]
    index = torch.arange(total, device=prompt_mask.device)
    # answer 0 is the prompt
    answer_index = torch.nn.functional.pad(answer_index, (prompt_length, 0))
    same_answer = (answer_index[:, None] == 0) | (answer_index[:, None] == answer_index[..., None])
    not_padding = torch.nn.functional.pad(prompt_mask, (0, total - prompt_length), value=True)
    # a padding token attends to itself, since a softmax over nothing is nan
    diagonal = torch.eye(total, dtype=torch.bool, device=index.device)
    causal = index[:, None] >= index
    return ((causal & same_answer & not_padding[:, None]) | diagonal).view(num_pairs, 1, total, total)


def answer_positions(prompt_positions: Tensor, length: int, start: int) -> Tensor:
    """Positions ``(B, [3,] T)`` of an answer that begins ``start`` positions after the prompt's last token.

    Args:
        prompt_positions: ``(B, P)`` or ``(B, 3, P)``.
        length: T.
        start: offset to the prompt's last token; 1 for the token after it.
    """
    return prompt_positions[..., -1:] + torch.arange(start, start + length, device=prompt_positions.device)


def plain(
    net: VisionLanguageModel,
    features: PairFeatures,
    tokens: Tensor,
    valid: Tensor | None = None,
    longest: int | None = None,
) -> Tensor:
    """States ``(B, K, T, D)`` from one sequence of prompt and answer per answer; only the images are shared.

    Exact for every model, with any attention or recurrence, and compatible with activation checkpointing. Always used
    for K = 1.

    Args:
        net: the model.
        features: B pairs.
        tokens: ``(B, K, T)``; the begin token takes the position of the prompt's last token.
        valid: bool ``(B, K, T)``; answers without a valid token are left out.
        longest: unused.
    """
    present = None if valid is None else valid[..., 0]
    # if no answer is valid, all are computed, since other processes may wait for sharded weights
    if present is not None and bool(present.any()) and not bool(present.all()):
        rows = present.nonzero()[:, 0]
        states = plain(net, _rows_of(features, rows), tokens[present][:, None])
        return _scatter(states[:, 0], present)
    prompt_ids, prompt_mask = features.extras["prompt_ids"], prompt_mask_of(features)
    positions = features.extras["positions"]
    _, count, length = tokens.shape
    answers = tokens[..., 1:].flatten(0, 1)
    positions = torch.cat([positions, answer_positions(positions, length - 1, 1)], -1)
    ids = torch.cat([prompt_ids.repeat_interleave(count, 0), answers], 1)
    mask = None
    if prompt_mask is not None:
        mask = torch.cat([prompt_mask.repeat_interleave(count, 0), torch.ones_like(answers, dtype=torch.bool)], 1)
    types = net.token_types(features, length - 1, count)
    states = net.hidden_states(  # (B * K, T, D)
        ids,
        mask,
        positions.repeat_interleave(count, 0),
        features=features,
        repeats=count,
        logits_to_keep=length,
        token_types=types,
    )
    return states.unflatten(0, (-1, count))


def packed(
    net: VisionLanguageModel,
    features: PairFeatures,
    tokens: Tensor,
    valid: Tensor | None = None,
    longest: int | None = None,
) -> Tensor:
    """States ``(B, K, T, D)`` from one sequence: the prompt, then all answers end to end, under :func:`packed_mask`.

    The sequence length is that of all answers of a pair together, without padding to the longest answer. Compatible
    with activation checkpointing; needs causal attention in all layers and an attention implementation with masks
    (sdpa, eager, flex).

    Args:
        net: the model.
        features: B pairs.
        tokens: ``(B, K, T)``; the begin token takes the position of the prompt's last token.
        valid: bool ``(B, K, T)``, a prefix of each answer; the other tokens are left out.
        longest: upper bound of the valid tokens of a pair; K * T when None.
    """
    prompt_ids, prompt_mask = features.extras["prompt_ids"], features.extras["prompt_mask"]
    positions = features.extras["positions"]
    valid = torch.ones_like(tokens, dtype=torch.bool) if valid is None else valid
    _, count, length = tokens.shape
    ids = torch.cat([prompt_ids[:, None, -1:].expand(-1, count, -1), tokens[..., 1:]], -1).flatten(1)  # (B, K * T)
    flat = valid.flatten(1)  # (B, K * T)
    max_tokens = flat.shape[1] if longest is None else longest
    indices = valid_first(valid, max_tokens)
    answer_index, offset = indices // length + 1, indices % length  # (B, max_tokens) each
    # padding at the end of a row belongs to no answer
    is_padding = torch.arange(max_tokens, device=flat.device) >= flat.sum(-1, keepdim=True)
    answer_index = answer_index.masked_fill(is_padding, count + 1)
    answer_token_positions = positions[..., -1:] + (offset if positions.ndim == 2 else offset[:, None])
    mask = net.additive_mask(packed_mask(prompt_mask[:, :-1], answer_index))
    types = net.token_types(features, max_tokens - 1)
    states = net.hidden_states(
        torch.cat([prompt_ids[:, :-1], ids.gather(1, indices)], 1),
        mask,
        torch.cat([positions[..., :-1], answer_token_positions], -1),
        features=features,
        logits_to_keep=max_tokens,
        token_types=types,
    )
    by_token = states.new_zeros(len(flat), flat.shape[1], states.shape[-1])
    by_token = by_token.scatter(1, indices[..., None].expand(-1, -1, states.shape[-1]), states)
    return by_token.unflatten(1, (count, length)).masked_fill(~valid[..., None], 0.0)


def cached(
    net: VisionLanguageModel,
    features: PairFeatures,
    tokens: Tensor,
    valid: Tensor | None = None,
    longest: int | None = None,
) -> Tensor:
    """States ``(B, K, T, D)`` from two passes: the prompt, then all answers with its keys and values.

    Faster than :func:`packed` after long prompts and usable with any attention, but not with activation checkpointing.

    Args:
        net: the model.
        features: B pairs.
        tokens: ``(B, K, T)``; the begin token takes the position of the prompt's last token.
        valid: bool ``(B, K, T)``; answers without a valid token are left out.
        longest: unused.
    """
    prompt_mask, positions = features.extras["prompt_mask"], features.extras["positions"]
    length = tokens.shape[-1]
    present = torch.ones_like(tokens[..., 0], dtype=torch.bool) if valid is None else valid[..., 0]
    rows = present.nonzero()[:, 0]
    cache, last_of_prompt = net.prefill(features)
    states = last_of_prompt[rows]
    if length > 1:
        answers = tokens[present][:, 1:]
        cache.reorder_cache(rows)
        mask = torch.cat([prompt_mask[rows], torch.ones_like(answers, dtype=torch.bool)], 1)
        positions = answer_positions(positions, length - 1, 1)[rows]
        answer_states = net.hidden_states(answers, mask, positions, cache=cache, logits_to_keep=length - 1)
        states = torch.cat([states, answer_states], 1)
    return _scatter(states, present)


def _rows_of(features: PairFeatures, rows: Tensor) -> PairFeatures:
    mask = None if features.mask is None else features.mask[rows]
    return PairFeatures(features.memory[rows], mask, {name: value[rows] for name, value in features.extras.items()})


def _scatter(states: Tensor, mask: Tensor) -> Tensor:
    """Rows of states ``(M, ...)`` at the M indices where a mask is True, 0 elsewhere."""
    if bool(mask.all()):
        return states.unflatten(0, mask.shape)
    return states.new_zeros(*mask.shape, *states.shape[1:]).index_put(mask.nonzero(as_tuple=True), states)


SCORING_METHODS: dict[str, Scoring] = {"packed": packed, "cached": cached, "plain": plain}
