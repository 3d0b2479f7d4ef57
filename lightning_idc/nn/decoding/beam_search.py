"""Batched beam search over any network that steps token by token.

:func:`beam_search_uncached` recomputes every prefix and is the reference that the cached path must equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_idc.images.types import PairFeatures
from lightning_idc.nn.decoding.decoding import (
    OWN,
    BeamState,
    CaptionNet,
    Decoded,
    never_said_ids,
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
    special: SpecialIds = OWN,
) -> Decoded:
    """Keep the ``beams`` most likely prefixes of every pair; the best finished one by normalised log-probability.

    Args:
        net: the network.
        features: B pairs.
        max_length: most tokens, the end token included.
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

    return _beam_search(advance, len(features), device, max_length, beams, length_penalty, special)


def beam_search_uncached(
    net: CaptionNet,
    features: PairFeatures,
    max_length: int,
    beams: int,
    length_penalty: float = 1.0,
    special: SpecialIds = OWN,
) -> Decoded:
    """As :func:`beam_search`, but every step runs the whole decoder over every prefix."""
    device = features.memory.device
    owners = torch.arange(len(features), device=device)

    def advance(prefixes: Tensor, origins: Tensor, pairs: Tensor) -> Tensor:
        nonlocal owners
        owners = owners[origins.to(device)]
        chosen = PairFeatures(features.memory[owners], None if features.mask is None else features.mask[owners])
        return net.logits(chosen, prefixes[:, None].to(device))[:, 0, -1]

    return _beam_search(advance, len(features), device, max_length, beams, length_penalty, special)


@dataclass(slots=True)
class _Finished:
    """The best finished caption of each of B pairs, and how many were finished; scores in double precision."""

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
        """Count what ends among the best candidates, of which the first that ends is the likeliest.

        Args:
            owners: pair of each row.
            prefixes: ``(N, length)``.
            rows: of the prefixes that the candidates ``(P, C)`` go on from.
            tokens: that they add.
            sums: their log-probabilities.
            ending: which of the first ones end, ``(P, beams)``.
            power: of the length that sums are divided by.
        """
        self.counts[owners] += ending.sum(1)
        places = ending.any(1).nonzero()[:, 0]
        columns = ending.int().argmax(1)[places]
        best, length = sums[places, columns].double(), prefixes.shape[1]
        scores = best / length**power
        # also what is not a number, which is to be seen and not to vanish
        better = ~(scores <= self.scores[owners[places]])
        places, columns = places[better], columns[better]
        winners = owners[places]
        self.ids[winners, : length - 1] = prefixes[rows[places, columns], 1:]
        self.ids[winners, length - 1] = tokens[places, columns]
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
    """Search; what is kept of the candidates is decided on the CPU, with one answer from the device per step.

    ``advance(prefixes (N, T), rows and pairs of the last call that go on)`` gives the next logits ``(N, V)``.
    """
    finished = _Finished.none_yet(pairs, max_length)
    prefixes = torch.full((pairs, 1), special.bos, dtype=torch.long)
    owners = origins = going = torch.arange(pairs)  # pair of each group of live prefixes
    sums = torch.zeros(pairs, 1, dtype=torch.float32, device=device)  # (live pairs, prefixes per pair)
    ends, never = torch.tensor(special.ends), never_said_ids(special, device)
    divisors = [length**length_penalty for length in range(1, max_length + 1)]
    for length in range(1, max_length + 1):
        log_probs = next_log_probs(advance(prefixes, origins, going), never)
        width, vocabulary = sums.shape[1], log_probs.shape[-1]
        totals = (sums[..., None] + log_probs.view(len(owners), width, vocabulary)).flatten(1)
        # twice as many as beams: at most `beams` of them can be end tokens, so enough stay alive
        top = totals.topk(min(2 * beams, totals.shape[1]), -1)
        found, places = top.values.cpu(), top.indices.cpu()
        rows = places // vocabulary + width * torch.arange(len(owners))[:, None]
        tokens = places % vocabulary
        possible = found != float("-inf")
        ending = possible & (torch.isin(tokens, ends) if length < max_length else True)

        # an end token only counts among the best `beams` candidates, as if the beam held it
        finished.add(owners, prefixes, rows, tokens, found, ending[:, :beams], length_penalty)
        chosen, kept = _first(possible & ~ending, beams)
        sums = found.gather(1, chosen).masked_fill(~kept, float("-inf"))
        best_open, best = sums[:, 0].double(), finished.scores[owners]
        done = (finished.counts[owners] >= beams) & (best >= best_open / divisors[length - 1])
        # log-probabilities only fall, so no prefix gets beyond its sum now over the most that it can be divided by
        done |= best >= best_open / max(divisors[length:], default=1.0)
        going = (~done & kept[:, 0]).nonzero()[:, 0]
        if not len(going):
            break
        origins = rows.gather(1, chosen)[going].flatten()
        prefixes = torch.cat([prefixes[origins], tokens.gather(1, chosen)[going].view(-1, 1)], 1)
        sums, owners = sums[going].to(device), owners[going]
    lengths = finished.lengths.tolist()
    ids = [row[:count] for row, count in zip(finished.ids.tolist(), lengths, strict=True)]
    return Decoded(ids, finished.means.tolist())


def _first(wanted: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Columns ``(P, count)`` of the first wanted candidates ``(P, C)``, and which of them there are.

    Where there are too few, the first one stands in for the others.
    """
    order = (~wanted).to(torch.uint8).sort(stable=True, dim=-1).indices[:, :count]
    there = wanted.gather(1, order)
    missing = count - order.shape[1]
    there = torch.nn.functional.pad(there, (0, missing))
    return torch.nn.functional.pad(order, (0, missing)).where(there, order[:, :1]), there
