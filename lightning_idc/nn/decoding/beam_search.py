"""Batched beam search of any network with a ``step``.

:func:`beam_search_uncached` recomputes every prefix and is the reference that the cached path must equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_idc.images.types import PairFeatures
from lightning_idc.nn.decoding.decoding import (
    DEFAULT_SPECIALS,
    BeamState,
    CaptionNet,
    Decoded,
    never_generated_ids,
    next_log_probs,
    select_rows,
)
from lightning_idc.nn.vocabulary import SpecialIds


def beam_search(
    net: CaptionNet,
    features: PairFeatures,
    max_length: int,
    beams: int,
    length_penalty: float = 1.0,
    special: SpecialIds = DEFAULT_SPECIALS,
) -> Decoded:
    """Keep the ``beams`` most likely prefixes of every pair; the best finished one by normalised log-probability.

    Args:
        net: the network.
        features: B pairs.
        max_length: maximum number of tokens, the end token included.
        beams: prefixes per pair.
        length_penalty: power of the length that the summed log-probability is divided by.
        special: ids of the vocabulary's special tokens.
    """
    state = net.start(features)
    device = features.memory.device

    def advance(prefixes: Tensor, origins: Tensor, pairs: Tensor) -> Tensor:
        nonlocal state
        if prefixes.shape[1] > 1:
            rows = origins.to(device)
            shared = isinstance(state, BeamState)
            state = state.reorder(rows, pairs.to(device)) if shared else select_rows(state, rows)
        return net.step(state, prefixes[:, -1].to(device))

    return _beam_search(
        advance,
        pairs=len(features),
        device=device,
        max_length=max_length,
        beams=beams,
        length_penalty=length_penalty,
        special=special,
    )


def beam_search_uncached(
    net: CaptionNet,
    features: PairFeatures,
    max_length: int,
    beams: int,
    length_penalty: float = 1.0,
    special: SpecialIds = DEFAULT_SPECIALS,
) -> Decoded:
    """As :func:`beam_search`, but every step runs the whole decoder over every prefix."""
    device = features.memory.device
    owners = torch.arange(len(features), device=device)

    def advance(prefixes: Tensor, origins: Tensor, pairs: Tensor) -> Tensor:
        nonlocal owners
        owners = owners[origins.to(device)]
        chosen = PairFeatures(features.memory[owners], None if features.mask is None else features.mask[owners])
        return net.logits(chosen, prefixes[:, None].to(device))[:, 0, -1]

    return _beam_search(
        advance,
        pairs=len(features),
        device=device,
        max_length=max_length,
        beams=beams,
        length_penalty=length_penalty,
        special=special,
    )


@dataclass(slots=True)
class _Finished:
    """The best finished caption of each of B pairs, and the number of finished ones; scores in double precision."""

    ids: Tensor
    lengths: Tensor
    scores: Tensor
    means: Tensor
    counts: Tensor

    @classmethod
    def none_yet(cls, pairs: int, max_length: int) -> _Finished:
        lengths = torch.zeros(pairs, dtype=torch.long)
        scores = torch.full((pairs,), float("-inf"), dtype=torch.float64)
        ids = torch.zeros(pairs, max_length, dtype=torch.long)
        return cls(ids, lengths, scores, scores.clone(), lengths.clone())

    def add(
        self, owners: Tensor, prefixes: Tensor, rows: Tensor, tokens: Tensor, sums: Tensor, ending: Tensor, power: float
    ) -> None:
        """Add the candidates that end; the first one that ends is the most likely.

        Args:
            owners: pair of each row.
            prefixes: ``(N, length)``.
            rows: indices of the prefixes of the candidates ``(P, C)``.
            tokens: last tokens of the candidates ``(P, C)``.
            sums: log-probabilities of the candidates ``(P, C)``.
            ending: which of the first candidates end, ``(P, beams)``.
            power: power of the length by which sums are divided.
        """
        self.counts[owners] += ending.sum(1)
        pairs = ending.any(1).nonzero()[:, 0]
        columns = ending.int().argmax(1)[pairs]
        best, length = sums[pairs, columns].double(), prefixes.shape[1]
        scores = best / length**power
        # NaN counts as better, so that it is visible in the result
        better = ~(scores <= self.scores[owners[pairs]])
        pairs, columns = pairs[better], columns[better]
        winners = owners[pairs]
        self.ids[winners, : length - 1] = prefixes[rows[pairs, columns], 1:]
        self.ids[winners, length - 1] = tokens[pairs, columns]
        self.lengths[winners] = length
        self.scores[winners] = scores[better]
        self.means[winners] = best[better] / length


@torch.no_grad()
def _beam_search(
    advance: Callable[[Tensor, Tensor, Tensor], Tensor],
    pairs: int,
    device: torch.device,
    max_length: int,
    beams: int,
    length_penalty: float,
    special: SpecialIds,
) -> Decoded:
    """Beam search; candidates are selected on the CPU, with one synchronisation with the device per step.

    ``advance(prefixes (N, T), rows, pairs)`` returns the next logits ``(N, V)``; rows and pairs are indices of the last
    call that continue.
    """
    finished = _Finished.none_yet(pairs, max_length)
    prefixes = torch.full((pairs, 1), special.bos, dtype=torch.long)
    owners = origins = going = torch.arange(pairs)  # pair of each group of live prefixes
    sums = torch.zeros(pairs, 1, dtype=torch.float32, device=device)  # (live pairs, prefixes per pair)
    ends, never = torch.tensor(special.ends), never_generated_ids(special, device)
    divisors = [length**length_penalty for length in range(1, max_length + 1)]
    for length in range(1, max_length + 1):
        log_probs = next_log_probs(advance(prefixes, origins, going), never)
        width, vocabulary = sums.shape[1], log_probs.shape[-1]
        totals = (sums[..., None] + log_probs.view(len(owners), width, vocabulary)).flatten(1)
        # twice as many as beams: at most `beams` of them can be end tokens, so enough continue
        top = totals.topk(min(2 * beams, totals.shape[1]), -1)
        candidate_sums, candidates = top.values.cpu(), top.indices.cpu()
        rows = candidates // vocabulary + width * torch.arange(len(owners))[:, None]
        tokens = candidates % vocabulary
        possible = candidate_sums != float("-inf")
        ending = possible & (torch.isin(tokens, ends) if length < max_length else True)

        # an end token only counts among the best `beams` candidates, as if the beam held it
        finished.add(
            owners=owners,
            prefixes=prefixes,
            rows=rows,
            tokens=tokens,
            sums=candidate_sums,
            ending=ending[:, :beams],
            power=length_penalty,
        )
        chosen, is_open = _first(possible & ~ending, beams)
        sums = candidate_sums.gather(1, chosen).masked_fill(~is_open, float("-inf"))
        best_open, best = sums[:, 0].double(), finished.scores[owners]
        done = (finished.counts[owners] >= beams) & (best >= best_open / divisors[length - 1])
        # log-probabilities only fall, so no prefix exceeds its current sum divided by the largest divisor
        done |= best >= best_open / max(divisors[length:], default=1.0)
        going = (~done & is_open[:, 0]).nonzero()[:, 0]
        if not len(going):
            break
        origins = rows.gather(1, chosen)[going].flatten()
        prefixes = torch.cat([prefixes[origins], tokens.gather(1, chosen)[going].view(-1, 1)], 1)
        sums, owners = sums[going].to(device), owners[going]
    lengths = finished.lengths.tolist()
    ids = [row[:count] for row, count in zip(finished.ids.tolist(), lengths, strict=True)]
    return Decoded(ids, finished.means.tolist())


def _first(mask: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Columns ``(P, count)`` of the first candidates in ``mask (P, C)``, and which of them exist.

    Where there are too few, the first one is repeated.
    """
    order = (~mask).to(torch.uint8).sort(stable=True, dim=-1).indices[:, :count]
    exists = mask.gather(1, order)
    missing = count - order.shape[1]
    exists = torch.nn.functional.pad(exists, (0, missing))
    return torch.nn.functional.pad(order, (0, missing)).where(exists, order[:, :1]), exists
