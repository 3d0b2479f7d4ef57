"""Batched beam search with any network that has a ``step``.

At each step, for all unfinished pairs at once:

1. log-probabilities of the next token for the ``beams`` prefixes of each pair,
2. the ``2 * beams`` most likely candidates, of which at most ``beams`` are end tokens,
3. candidates that end are compared with the best finished caption (`_Finished.add`),
4. the ``beams`` most likely others are the next prefixes; a pair is done when none of them can become better.

:func:`beam_search_uncached` recomputes every prefix; both must return equal captions.
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
    """Beam search; returns the finished caption of each pair with the highest length-normalised log-probability.

    Args:
        net: the network.
        features: B pairs.
        max_length: maximum number of tokens, including the end token (``max_new_tokens`` of transformers).
        beams: number of prefixes per pair (``num_beams`` of transformers).
        length_penalty: the summed log-probability is divided by the length to this power, as in transformers.
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
    """Beam search without a KV cache: every step runs the whole decoder over every prefix."""
    device = features.memory.device
    owners = torch.arange(len(features), device=device)

    def advance(prefixes: Tensor, origins: Tensor, pairs: Tensor) -> Tensor:
        nonlocal owners
        owners = owners[origins.to(device)]
        selected = PairFeatures(features.memory[owners], None if features.mask is None else features.mask[owners])
        return net.logits(selected, prefixes[:, None].to(device))[:, 0, -1]

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
    """The best finished caption of each of B pairs; scores in double precision.

    Args:
        ids: token ids ``(B, max_length)``.
        lengths: lengths of the captions ``(B,)``, with the end token.
        scores: length-normalised log-probabilities ``(B,)``.
        means: mean log-probabilities per token ``(B,)``.
        counts: numbers of finished captions ``(B,)``.
    """

    ids: Tensor
    lengths: Tensor
    scores: Tensor
    means: Tensor
    counts: Tensor

    @classmethod
    def empty(cls, num_pairs: int, max_length: int) -> _Finished:
        lowest = torch.full((num_pairs,), float("-inf"), dtype=torch.float64)
        return cls(
            ids=torch.zeros(num_pairs, max_length, dtype=torch.long),
            lengths=torch.zeros(num_pairs, dtype=torch.long),
            scores=lowest,
            means=lowest.clone(),
            counts=torch.zeros(num_pairs, dtype=torch.long),
        )

    def add(
        self, owners: Tensor, prefixes: Tensor, rows: Tensor, tokens: Tensor, sums: Tensor, ending: Tensor, power: float
    ) -> None:
        """Compare the most likely candidate that ends with the best finished caption of its pair.

        Args:
            owners: indices of the unfinished pairs ``(P,)``.
            prefixes: prefixes of all candidates ``(N, length)``.
            rows: index of the prefix of each candidate ``(P, C)``.
            tokens: last token of each candidate ``(P, C)``.
            sums: log-probability of each candidate ``(P, C)``, in descending order.
            ending: True at candidates that end ``(P, beams)``.
            power: sums are divided by the length to this power.
        """
        self.counts[owners] += ending.sum(1)
        pairs = ending.any(1).nonzero()[:, 0]
        columns = ending.int().argmax(1)[pairs]
        best, length = sums[pairs, columns].double(), prefixes.shape[1]
        scores = best / length**power
        # NaN counts as better, so that it is visible in the result
        is_better = ~(scores <= self.scores[owners[pairs]])
        pairs, columns = pairs[is_better], columns[is_better]
        improved = owners[pairs]
        self.ids[improved, : length - 1] = prefixes[rows[pairs, columns], 1:]
        self.ids[improved, length - 1] = tokens[pairs, columns]
        self.lengths[improved] = length
        self.scores[improved] = scores[is_better]
        self.means[improved] = best[is_better] / length


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

    ``advance(prefixes (N, T), origins, active)`` returns the next logits ``(N, V)``, where ``origins (N,)`` and
    ``active`` are the rows and the pairs of the last call that continue.
    """
    finished = _Finished.empty(pairs, max_length)
    prefixes = torch.full((pairs, 1), special.bos, dtype=torch.long)
    # `owners` are the unfinished pairs (P,), each with `width` prefixes
    owners = origins = active = torch.arange(pairs)
    sums = torch.zeros(pairs, 1, dtype=torch.float32, device=device)  # (P, width)
    end_ids, never_ids = torch.tensor(special.ends), never_generated_ids(special, device)
    divisors = [length**length_penalty for length in range(1, max_length + 1)]
    for length in range(1, max_length + 1):
        log_probs = next_log_probs(advance(prefixes, origins, active), never_ids)  # (P * width, V)
        width, vocabulary = sums.shape[1], log_probs.shape[-1]
        totals = (sums[..., None] + log_probs.view(len(owners), width, vocabulary)).flatten(1)  # (P, width * V)
        # at most `beams` of 2 * beams candidates are end tokens, so that enough continue
        top = totals.topk(min(2 * beams, totals.shape[1]), -1)
        candidate_sums, candidates = top.values.cpu(), top.indices.cpu()  # (P, C)
        rows = candidates // vocabulary + width * torch.arange(len(owners))[:, None]
        tokens = candidates % vocabulary
        possible = candidate_sums != float("-inf")
        ending = possible & (torch.isin(tokens, end_ids) if length < max_length else True)

        # an end token counts only among the `beams` most likely candidates, as in a beam with finished prefixes
        finished.add(
            owners=owners,
            prefixes=prefixes,
            rows=rows,
            tokens=tokens,
            sums=candidate_sums,
            ending=ending[:, :beams],
            power=length_penalty,
        )
        columns, is_open = _first(possible & ~ending, beams)  # (P, beams)
        sums = candidate_sums.gather(1, columns).masked_fill(~is_open, float("-inf"))
        best_open, best = sums[:, 0].double(), finished.scores[owners]
        is_done = (finished.counts[owners] >= beams) & (best >= best_open / divisors[length - 1])
        # sums never increase, so no score exceeds the current sum divided by the largest divisor
        is_done |= best >= best_open / max(divisors[length:], default=1.0)
        active = (~is_done & is_open[:, 0]).nonzero()[:, 0]
        if not len(active):
            break
        origins = rows.gather(1, columns)[active].flatten()
        prefixes = torch.cat([prefixes[origins], tokens.gather(1, columns)[active].view(-1, 1)], 1)
        sums, owners = sums[active].to(device), owners[active]
    lengths = finished.lengths.tolist()
    ids = [row[:length] for row, length in zip(finished.ids.tolist(), lengths, strict=True)]
    return Decoded(ids, finished.means.tolist())


def _first(mask: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Columns ``(P, count)`` of the first True values of ``mask (P, C)``, and which of them exist.

    The first column is repeated in place of missing ones.
    """
    order = (~mask).to(torch.uint8).sort(stable=True, dim=-1).indices[:, :count]
    exists = mask.gather(1, order)
    missing = count - order.shape[1]
    exists = torch.nn.functional.pad(exists, (0, missing))
    return torch.nn.functional.pad(order, (0, missing)).where(exists, order[:, :1]), exists
