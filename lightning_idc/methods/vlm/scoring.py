"""K answers after one prompt: two exact ways to score them with the prompt and its images computed once.

Both give the logits that K separate passes give; ``benchmarks/vlm_scoring.py`` measures what that saves.
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


def answer_positions(prompt_positions: Tensor, answers: int, length: int) -> Tensor:
    """Positions of the K answers' tokens, which all start at the prompt's last token: ``(B, [3,] K * T)``.

    Args:
        prompt_positions: ``(B, P)`` or ``(B, 3, P)``.
        answers: K.
        length: T.
    """
    steps = torch.arange(length, device=prompt_positions.device)
    return (prompt_positions[..., -1:] + steps).repeat(*[1] * (prompt_positions.ndim - 1), answers)


def begun(prompt_ids: Tensor, tokens: Tensor) -> Tensor:
    """Answers ``(B, K, T)`` with the prompt's last token in place of the begin token."""
    first = prompt_ids[:, None, -1:].expand(-1, tokens.shape[1], -1)
    return torch.cat([first, tokens[..., 1:]], -1)


def packed(net: VLMNet, features: PairFeatures, tokens: Tensor) -> Tensor:
    """Logits ``(B, K, T, V)`` from one sequence: the prompt, then all K answers, under :func:`packed_mask`.

    Goes with activation checkpointing; needs an attention that takes a mask (sdpa, eager, flex).

    Args:
        net: the model.
        features: B pairs.
        tokens: ``(B, K, T)``; the begin token stands for the prompt's last one.
    """
    prompt_ids, prompt_mask = features.extras["prompt_ids"], features.extras["prompt_mask"]
    positions = features.extras["positions"]
    answers = begun(prompt_ids, tokens)
    _, count, length = answers.shape
    shared = prompt_ids.shape[1] - 1
    ids = torch.cat([prompt_ids[:, :-1], answers.flatten(1)], 1)
    places = torch.cat([positions[..., :-1], answer_positions(positions, count, length)], -1)
    mask = packed_mask(prompt_mask[:, :-1], count, length)
    hidden = net.hidden(ids, net.additive(mask), places, features).last_hidden_state
    return net.head(hidden[:, shared:]).unflatten(1, (count, length))


def cached(net: VLMNet, features: PairFeatures, tokens: Tensor) -> Tensor:
    """Logits ``(B, K, T, V)`` from two passes: the prompt, whose keys and values the B * K answers then share.

    Faster than :func:`packed` behind long prompts and with any attention, but turned off by activation checkpointing.

    Args:
        net: the model.
        features: B pairs.
        tokens: ``(B, K, T)``; the begin token stands for the prompt's last one.
    """
    prompt_mask, positions = features.extras["prompt_mask"], features.extras["positions"]
    answers = begun(features.extras["prompt_ids"], tokens)
    _, count, length = answers.shape
    cache = net.read_prompt(features)
    cache.batch_repeat_interleave(count)
    told = prompt_mask[:, :-1].repeat_interleave(count, 0)
    mask = torch.cat([told, told.new_ones(len(told), length)], 1)
    places = answer_positions(positions, 1, length).repeat_interleave(count, 0)
    hidden = net.hidden(answers.flatten(0, 1), mask, places, None, cache).last_hidden_state
    return net.head(hidden).unflatten(0, (-1, count))
