"""Sampling of captions with temperature and nucleus (top-p) sampling, from any network that has a ``step``."""

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
    """Sample K captions of each pair, encoded once.

    Args:
        net: the network.
        features: B pairs.
        length: maximum number of tokens, including the end token.
        samples: number of captions per pair, K (``num_return_sequences`` of transformers).
        temperature: divisor of the logits; near 0 sampling is greedy.
        top_p: probability mass of the most likely tokens to sample from (nucleus sampling).
        generator: random number generator; torch's global one when None.
        special: ids of the vocabulary's special tokens.
        uniforms: uniform random numbers in [0, 1) in place of the generator, one per token, ``(B * K, length)``, so
            that the samples of a pair do not depend on the rest of its batch.

    Returns:
        B * K captions, contiguous for each pair, with the log-probabilities of the network, before temperature and
        ``top_p``.

    Raises:
        ConfigError: temperature, ``top_p`` or the number of samples is out of range.
    """
    check_sampling(temperature, top_p, samples)
    device, count = features.memory.device, len(features) * samples
    if uniforms is None:
        generator_device = generator.device if generator else None
        # always float32: half precision is too coarse for improbable tokens
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
    is_unfinished = torch.ones(count, dtype=torch.bool, device=device)
    end_ids, never_ids = torch.tensor(special.ends, device=device), never_generated_ids(special, device)
    for position in range(length):
        log_probs = next_log_probs(net.step(state, tokens), never_ids)
        sampled = _inverse_cdf(sampling_probabilities(log_probs, temperature, top_p), uniforms[rows, position])
        tokens = sampled.where(is_unfinished, special.pad)
        ids[rows, position] = tokens
        sums[rows] += log_probs.gather(1, sampled[:, None])[:, 0].where(is_unfinished, 0.0)
        lengths[rows] += is_unfinished
        is_unfinished = is_unfinished & ~torch.isin(tokens, end_ids)
        # captions that share the memory of a pair remain in the batch until all of them are finished
        remains = is_unfinished.view(-1, samples).any(1) if shared else is_unfinished
        num_remaining = int(remains.sum())
        if position + 1 == length or num_remaining == 0:
            break
        if num_remaining < len(remains):
            selected = remains.nonzero()[:, 0]
            remains = remains.repeat_interleave(samples) if shared else remains
            rows, tokens, is_unfinished = rows[remains], tokens[remains], is_unfinished[remains]
            state = state.reorder(remains.nonzero()[:, 0], selected) if shared else select_rows(state, selected)
    return decoded(ids, lengths, sums)


def sampling_probabilities(log_probs: Tensor, temperature: float = 1.0, top_p: float = 1.0) -> Tensor:
    """Sampling probabilities ``(N, V)`` of the next tokens.

    Args:
        log_probs: log-probabilities of the next tokens, ``(N, V)``.
        temperature: divisor of the log-probabilities.
        top_p: probability mass of the most likely tokens that are kept, at least one; the others have probability 0.

    Example:
        >>> sampling_probabilities(torch.tensor([[0.5, 0.3, 0.2]]).log(), top_p=0.6)
        tensor([[0.6250, 0.3750, 0.0000]])
    """
    probabilities = (log_probs / temperature).softmax(-1)
    if top_p >= 1:
        return probabilities
    descending = probabilities.sort(-1, descending=True)
    mass_before = descending.values.cumsum(-1) - descending.values
    nucleus = descending.values.masked_fill(mass_before >= top_p, 0.0)
    nucleus = nucleus / nucleus.sum(-1, keepdim=True)
    return torch.zeros_like(probabilities).scatter(-1, descending.indices, nucleus)


def _inverse_cdf(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Inverse transform sampling of tokens ``(N,)`` from ``(N, V)`` with one uniform number each, ``(N,)``."""
    cdf = probabilities.cumsum(-1)
    # scale to the last value, which may differ from 1 by rounding, and stay below it: no token of probability 0
    upper = torch.nextafter(cdf[:, -1:], torch.zeros_like(cdf[:, -1:]))
    quantiles = torch.minimum(uniforms[:, None].to(cdf) * cdf[:, -1:], upper)
    return torch.searchsorted(cdf, quantiles, right=True)[:, 0]


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
