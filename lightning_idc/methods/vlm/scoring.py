"""K answers after one prompt: three exact ways to score them with the images computed once.

All give what K separate passes give; ``checking.py`` finds out which of them a model allows, and
``benchmarks/vlm_scoring.py`` measures what they save.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lightning_idc.core.types import PairFeatures

if TYPE_CHECKING:
    from lightning_idc.methods.vlm.net import VLMNet

Scoring = Callable[["VLMNet", PairFeatures, Tensor], Tensor]


def packed_mask(prompt_mask: Tensor, answers: int, length: int) -> Tensor:
    """Who sees whom when K answers stand behind one prompt: bool ``(B, 1, P + K * T, P + K * T)``.

    The prompt is causal; an answer sees the prompt and what it has said itself, and no other answer.

    Args:
        prompt_mask: bool ``(B, P)``, False at padding.
        answers: K.
        length: T.
    """
    pairs, prompt = prompt_mask.shape
    total = prompt + answers * length
    place = torch.arange(total, device=prompt_mask.device)
    # answer 0 is the prompt; answers count from 1
    owner = torch.where(place < prompt, 0, (place - prompt) // length + 1)
    causal = place[:, None] >= place
    mine = causal & ((owner == 0) | (owner[:, None] == owner))
    counts = torch.nn.functional.pad(prompt_mask, (0, total - prompt), value=True)
    # a padding token sees itself, as a softmax over nothing is not a number
    itself = torch.eye(total, dtype=torch.bool, device=place.device)
    return ((mine & counts[:, None]) | itself).view(pairs, 1, total, total)


def answer_positions(prompt_positions: Tensor, answers: int, length: int, start: int = 0) -> Tensor:
    """Positions of K answers, the first of which is ``start`` behind the prompt's last token: ``(B, [3,] K * T)``.

    Args:
        prompt_positions: ``(B, P)`` or ``(B, 3, P)``.
        answers: K.
        length: T.
        start: 0 where answers begin with the prompt's last token.
    """
    steps = torch.arange(start, start + length, device=prompt_positions.device)
    return (prompt_positions[..., -1:] + steps).repeat(*[1] * (prompt_positions.ndim - 1), answers)


def plain(net: VLMNet, features: PairFeatures, tokens: Tensor) -> Tensor:
    """States ``(B, K, T, D)`` from B * K sequences of a prompt and an answer; only the images are shared.

    Exact for every model, whatever its attention or recurrence; goes with any attention and with activation
    checkpointing. What K = 1 always takes.

    Args:
        net: the model.
        features: B pairs.
        tokens: ``(B, K, T)``; the begin token stands for the prompt's last one.
    """
    prompt_ids, prompt_mask = features.extras["prompt_ids"], features.extras["prompt_mask"]
    positions = features.extras["positions"]
    _, count, length = tokens.shape
    answers = tokens[..., 1:].flatten(0, 1)
    places = torch.cat([positions, answer_positions(positions, 1, length - 1, 1)], -1)
    ids = torch.cat([prompt_ids.repeat_interleave(count, 0), answers], 1)
    mask = torch.cat([prompt_mask.repeat_interleave(count, 0), torch.ones_like(answers, dtype=torch.bool)], 1)
    types = net.token_types(features, length - 1, count)
    states = net.states(ids, mask, places.repeat_interleave(count, 0), features, count, keep=length, types=types)
    return states.unflatten(0, (-1, count))


def packed(net: VLMNet, features: PairFeatures, tokens: Tensor) -> Tensor:
    """States ``(B, K, T, D)`` from one sequence: the prompt, then all K answers, under :func:`packed_mask`.

    Goes with activation checkpointing; needs causal attention throughout, in an implementation that takes a mask
    (sdpa, eager, flex).

    Args:
        net: the model.
        features: B pairs.
        tokens: ``(B, K, T)``; the begin token stands for the prompt's last one.
    """
    prompt_ids, prompt_mask = features.extras["prompt_ids"], features.extras["prompt_mask"]
    positions = features.extras["positions"]
    _, count, length = tokens.shape
    first = prompt_ids[:, None, -1:].expand(-1, count, -1)
    answers = torch.cat([first, tokens[..., 1:]], -1)
    ids = torch.cat([prompt_ids[:, :-1], answers.flatten(1)], 1)
    places = torch.cat([positions[..., :-1], answer_positions(positions, count, length)], -1)
    mask = net.additive(packed_mask(prompt_mask[:, :-1], count, length))
    types = net.token_types(features, count * length - 1)
    states = net.states(ids, mask, places, features, keep=count * length, types=types)
    return states.unflatten(1, (count, length))


def cached(net: VLMNet, features: PairFeatures, tokens: Tensor) -> Tensor:
    """States ``(B, K, T, D)`` from two passes: the prompt, whose keys and values the B * K answers then share.

    Faster than :func:`packed` behind long prompts and with any attention, but turned off by activation checkpointing.

    Args:
        net: the model.
        features: B pairs.
        tokens: ``(B, K, T)``; the begin token stands for the prompt's last one.
    """
    prompt_mask, positions = features.extras["prompt_mask"], features.extras["positions"]
    pairs, count, length = tokens.shape
    cache, first = net.read_prompt(features)
    first = first[:, None].expand(-1, count, -1, -1)
    if length == 1:
        return first
    answers = tokens[..., 1:].flatten(0, 1)
    cache.reorder_cache(torch.arange(pairs, device=tokens.device).repeat_interleave(count))
    mask = torch.cat([prompt_mask.repeat_interleave(count, 0), torch.ones_like(answers, dtype=torch.bool)], 1)
    places = answer_positions(positions, 1, length - 1, 1).repeat_interleave(count, 0)
    rest = net.states(answers, mask, places, cache=cache, keep=length - 1)
    return torch.cat([first, rest.unflatten(0, (pairs, count))], 2)


WAYS: dict[str, Scoring] = {"packed": packed, "cached": cached, "plain": plain}
