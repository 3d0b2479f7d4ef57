"""Captions drawn at random, token by token, over any network that steps."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_idc.images.types import PairFeatures
from lightning_idc.nn.decoding.decoding import (
    OWN,
    BeamState,
    CaptionNet,
    Decoded,
    decoded,
    never_said_ids,
    next_log_probs,
    select_rows,
)
from lightning_idc.nn.vocabulary import SpecialIds
from lightning_idc.utils.errors import check_number, check_positive


@torch.no_grad()
def sample(
    net: CaptionNet,
    features: PairFeatures,
    length: int,
    samples: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    generator: torch.Generator | None = None,
    special: SpecialIds = OWN,
    uniforms: Tensor | None = None,
) -> Decoded:
    """Draw captions at random, token by token, from one encoding of each pair.

    Args:
        net: the network.
        features: B pairs.
        length: most tokens, the end token included.
        samples: captions per pair, K.
        temperature: divides log-probabilities; towards 0 the most likely token is certain.
        top_p: tokens are drawn from the fewest likely ones whose probabilities sum to this.
        generator: of all chance; torch's global one when None.
        special: ids of the vocabulary's special tokens.
        uniforms: numbers in [0, 1) that decide instead of the generator, one for each token, ``(B * K, length)``: what
            a pair gets then does not depend on the other pairs of its batch.

    Returns:
        B * K captions, those of a pair together; the log-probabilities are the network's own, whatever temperature
        and ``top_p``.

    Raises:
        ConfigError: temperature, ``top_p`` or the number of samples is out of range.
    """
    check_sampling(temperature, top_p, samples)
    device, count = features.memory.device, len(features) * samples
    if uniforms is None:
        device_of_chance = generator.device if generator else None
        # never in the network's precision, whose few numbers would leave most tokens out
        uniforms = torch.rand(count, length, dtype=torch.float32, generator=generator, device=device_of_chance)
    uniforms = uniforms.to(device)
    pairs = torch.arange(len(features), device=device)
    owners = pairs.repeat_interleave(samples)
    state = net.start(features)
    shared = isinstance(state, BeamState)
    state = state.reorder(owners, pairs) if shared else select_rows(state, owners)
    ids = torch.full((count, length), special.pad, dtype=torch.long, device=device)
    sums = torch.zeros(count, dtype=torch.float32, device=device)
    lengths = torch.zeros(count, dtype=torch.long, device=device)
    rows = torch.arange(count, device=device)
    tokens = torch.full((count,), special.bos, dtype=torch.long, device=device)
    going = torch.ones(count, dtype=torch.bool, device=device)
    ends, never = torch.tensor(special.ends, device=device), never_said_ids(special, device)
    for position in range(length):
        log_probs = next_log_probs(net.step(state, tokens), never)
        drawn = _drawn(sampling_probabilities(log_probs, temperature, top_p), uniforms[rows, position])
        tokens = drawn.where(going, special.pad)
        ids[rows, position] = tokens
        sums[rows] += log_probs.gather(1, drawn[:, None])[:, 0].where(going, 0.0)
        lengths[rows] += going
        going = going & ~torch.isin(tokens, ends)
        # the memory of a pair is read once for all its captions, which then stay together until all have ended
        kept = going.view(-1, samples).any(1) if shared else going
        left = int(kept.sum())
        if position + 1 == length or left == 0:
            break
        if left < len(kept):
            chosen = kept.nonzero()[:, 0]
            kept = kept.repeat_interleave(samples) if shared else kept
            rows, tokens, going = rows[kept], tokens[kept], going[kept]
            places = kept.nonzero()[:, 0]
            state = state.reorder(places, chosen) if shared else select_rows(state, chosen)
    return decoded(ids, lengths, sums)


def sampling_probabilities(log_probs: Tensor, temperature: float = 1.0, top_p: float = 1.0) -> Tensor:
    """Probabilities ``(N, V)`` that tokens are drawn with.

    Args:
        log_probs: of the next tokens, ``(N, V)``.
        temperature: divides them.
        top_p: all but the fewest likely tokens whose probabilities sum to this get 0; the likeliest stays.

    Example:
        >>> sampling_probabilities(torch.tensor([[0.5, 0.3, 0.2]]).log(), top_p=0.6)
        tensor([[0.6250, 0.3750, 0.0000]])
    """
    chances = (log_probs / temperature).softmax(-1)
    if top_p >= 1:
        return chances
    ordered = chances.sort(-1, descending=True)
    before = ordered.values.cumsum(-1) - ordered.values
    kept = ordered.values.masked_fill(before >= top_p, 0.0)
    kept = kept / kept.sum(-1, keepdim=True)
    return torch.zeros_like(chances).scatter(-1, ordered.indices, kept)


def _drawn(chances: Tensor, uniforms: Tensor) -> Tensor:
    """Tokens ``(N,)`` of distributions ``(N, V)`` by the inverse of their sums, so that one number decides each."""
    sums = chances.cumsum(-1)
    # scaled to the last sum, which rounding may keep from 1, and below it, or a token without a chance could be next
    below = torch.nextafter(sums[:, -1:], torch.zeros_like(sums[:, -1:]))
    goals = torch.minimum(uniforms[:, None].to(sums) * sums[:, -1:], below)
    return torch.searchsorted(sums, goals, right=True)[:, 0]


def check_sampling(temperature: float, top_p: float, samples: int = 1) -> None:
    """Refuse numbers that nothing can be sampled by.

    Args:
        temperature: as of :func:`sample`.
        top_p: as of :func:`sample`.
        samples: as of :func:`sample`.

    Raises:
        ConfigError: one of them is out of range.
    """
    check_positive("temperature", temperature)
    check_positive("top_p", top_p, maximum=1)
    check_number("samples", samples, minimum=1)
