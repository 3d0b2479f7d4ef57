"""Sampling of captions from any network with a ``step``."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_idc.images.types import PairFeatures
from lightning_idc.nn.decoding.decoding import (
    DEFAULT_SPECIALS,
    BeamState,
    CaptionNet,
    Decoded,
    decoded,
    never_generated_ids,
    next_log_probs,
    select_rows,
)
from lightning_idc.nn.vocabulary import SpecialIds
from lightning_idc.utils.bounds import PositiveFloat, PositiveInt, PositiveShare, check_arguments


@torch.no_grad()
def sample(
    net: CaptionNet,
    features: PairFeatures,
    length: int,
    samples: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    generator: torch.Generator | None = None,
    special: SpecialIds = DEFAULT_SPECIALS,
    uniforms: Tensor | None = None,
) -> Decoded:
    """Sample captions token by token from one encoding of each pair.

    Args:
        net: the network.
        features: B pairs.
        length: maximum number of tokens, the end token included.
        samples: captions per pair, K.
        temperature: divisor of log-probabilities; near 0 sampling is greedy.
        top_p: probability mass of the tokens to sample from (nucleus sampling).
        generator: random numbers; torch's global generator when None.
        special: ids of the vocabulary's special tokens.
        uniforms: random numbers in [0, 1), one for each token, ``(B * K, length)``, instead of the generator; samples
            of a pair then do not depend on the other pairs of its batch.

    Returns:
        B * K captions, those of a pair together; the log-probabilities are those of the network, without
        temperature and ``top_p``.

    Raises:
        ConfigError: temperature, ``top_p`` or the number of samples is out of range.
    """
    check_sampling(temperature, top_p, samples)
    device, count = features.memory.device, len(features) * samples
    if uniforms is None:
        generator_device = generator.device if generator else None
        # always float32: in half precision most tokens could never be drawn
        uniforms = torch.rand(count, length, dtype=torch.float32, generator=generator, device=generator_device)
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
    ends, never = torch.tensor(special.ends, device=device), never_generated_ids(special, device)
    for position in range(length):
        log_probs = next_log_probs(net.step(state, tokens), never)
        drawn = _inverse_cdf(sampling_probabilities(log_probs, temperature, top_p), uniforms[rows, position])
        tokens = drawn.where(going, special.pad)
        ids[rows, position] = tokens
        sums[rows] += log_probs.gather(1, drawn[:, None])[:, 0].where(going, 0.0)
        lengths[rows] += going
        going = going & ~torch.isin(tokens, ends)
        # captions of a pair share its memory, and so stay together until all have ended
        continues = going.view(-1, samples).any(1) if shared else going
        num_left = int(continues.sum())
        if position + 1 == length or num_left == 0:
            break
        if num_left < len(continues):
            chosen = continues.nonzero()[:, 0]
            continues = continues.repeat_interleave(samples) if shared else continues
            rows, tokens, going = rows[continues], tokens[continues], going[continues]
            rows_left = continues.nonzero()[:, 0]
            state = state.reorder(rows_left, chosen) if shared else select_rows(state, chosen)
    return decoded(ids, lengths, sums)


def sampling_probabilities(log_probs: Tensor, temperature: float = 1.0, top_p: float = 1.0) -> Tensor:
    """Sampling probabilities ``(N, V)`` of the next tokens.

    Args:
        log_probs: log-probabilities of the next tokens, ``(N, V)``.
        temperature: divisor of the log-probabilities.
        top_p: probability mass of the most likely tokens that are kept, at least one; the others get 0.

    Example:
        >>> sampling_probabilities(torch.tensor([[0.5, 0.3, 0.2]]).log(), top_p=0.6)
        tensor([[0.6250, 0.3750, 0.0000]])
    """
    probabilities = (log_probs / temperature).softmax(-1)
    if top_p >= 1:
        return probabilities
    ordered = probabilities.sort(-1, descending=True)
    before = ordered.values.cumsum(-1) - ordered.values
    nucleus = ordered.values.masked_fill(before >= top_p, 0.0)
    nucleus = nucleus / nucleus.sum(-1, keepdim=True)
    return torch.zeros_like(probabilities).scatter(-1, ordered.indices, nucleus)


def _inverse_cdf(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Tokens ``(N,)`` of distributions ``(N, V)`` by inverse transform sampling, one uniform number each."""
    sums = probabilities.cumsum(-1)
    # scaled to the last sum, which may not be 1 by rounding, and below it, so that no token of probability 0 is drawn
    below = torch.nextafter(sums[:, -1:], torch.zeros_like(sums[:, -1:]))
    goals = torch.minimum(uniforms[:, None].to(sums) * sums[:, -1:], below)
    return torch.searchsorted(sums, goals, right=True)[:, 0]


def check_sampling(temperature: PositiveFloat, top_p: PositiveShare, samples: PositiveInt = 1) -> None:
    """Check the options of sampling.

    Args:
        temperature: as in :func:`sample`.
        top_p: as in :func:`sample`.
        samples: as in :func:`sample`.

    Raises:
        ConfigError: one of them is out of range.
    """
    check_arguments(check_sampling, locals())
