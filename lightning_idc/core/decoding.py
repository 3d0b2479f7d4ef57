"""Batched greedy and beam search over any network that steps token by token.

The network keeps what it has computed in a state of its own, so a step costs one token; rows that have said
the end token leave the batch. :func:`greedy_uncached` recomputes every prefix and is the reference that the
cached path must equal token for token.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from lightning_idc.core.types import PairFeatures
from lightning_idc.core.vocabulary import SpecialIds
from lightning_idc.errors import ConfigError

OWN = SpecialIds()
NEVER_SAID = OWN.never_said


@runtime_checkable
class DecodingState(Protocol):
    """State that chooses rows itself, where its tensors are not all batched along dimension 0."""

    def select(self, rows: Tensor) -> Any:
        """State of the given rows, ``(M,)`` int64; rows may repeat."""


@runtime_checkable
class BeamState(Protocol):
    """State whose prefixes of one pair share what belongs to the pair, which beam search then never copies."""

    def reorder(self, rows: Tensor, pairs: Tensor) -> Any:
        """State of the given rows ``(P' * beams,)``, those of a pair together, and of its pairs ``(P',)``, each once.

        Both are places among those of now.
        """


def select_rows(state: Any, rows: Tensor) -> Any:
    """State of the given rows: by its ``select``, or of each tensor in it, which has one row per caption.

    Args:
        state: tensor, list, tuple, dict, dataclass or other object with tensors in it, at any depth.
        rows: ``(M,)`` int64; rows may repeat.

    Example:
        >>> select_rows({"hidden": torch.tensor([[1.0], [2.0]])}, torch.tensor([1, 1]))["hidden"].tolist()
        [[2.0], [2.0]]
    """
    if isinstance(state, DecodingState) and not isinstance(state, Tensor):
        return state.select(rows)
    if isinstance(state, Tensor):
        return state[rows]
    if isinstance(state, (list, tuple)):
        chosen = [select_rows(value, rows) for value in state]
        return type(state)(*chosen) if isinstance(state, tuple) and type(state) is not tuple else type(state)(chosen)
    if isinstance(state, dict):
        return {name: select_rows(value, rows) for name, value in state.items()}
    if isinstance(state, (bool, int, float, str, bytes, type(None))):
        return state
    found = copy.copy(state)
    names = [field.name for field in fields(state)] if is_dataclass(state) else list(vars(state))
    for name in names:
        setattr(found, name, select_rows(getattr(state, name), rows))
    return found


class CaptionNet(Protocol):
    """What a network offers to be trained and decoded as a small captioner."""

    def encode(self, images: Tensor) -> PairFeatures:
        """Features of uint8 images ``(B, 2, 3, H, W)``."""

    def logits(self, features: PairFeatures, tokens: Tensor) -> Tensor:
        """Logits ``(B, K, T, V)`` of the token after each of ``tokens (B, K, T)``."""

    def start(self, features: PairFeatures) -> Any:
        """State before the first token, one row per pair; what :func:`select_rows` takes apart."""

    def step(self, state: Any, tokens: Tensor) -> Tensor:
        """Logits ``(N, V)`` after one more token ``(N,)`` per row; advances the state, in place."""


@dataclass(slots=True)
class Decoded:
    """Generated captions.

    Args:
        ids: token ids per pair, the end token included where it was said.
        mean_log_probs: mean log-probability per token, per pair.
    """

    ids: list[list[int]]
    mean_log_probs: list[float]


def _never_said(special: SpecialIds, device: torch.device) -> Tensor:
    """Ids on the device, once and not at every step: a list of them would be copied there, and waited for."""
    return torch.tensor(special.never_said, dtype=torch.long, device=device)


def _next_log_probs(logits: Tensor, never: Tensor) -> Tensor:
    """Log-probabilities over all tokens, with those that are never said set to minus infinity.

    They are masked after normalising, so that the log-probability of a generated caption is its teacher-forced one.
    """
    return logits.float().log_softmax(-1).index_fill_(-1, never, float("-inf"))


@torch.no_grad()
def greedy(net: CaptionNet, features: PairFeatures, max_length: int, special: SpecialIds = OWN) -> Decoded:
    """Most likely next token each time, at most ``max_length`` tokens with the end token."""
    state = net.start(features)
    device = features.memory.device
    count = len(features)
    rows = torch.arange(count, device=device)
    tokens = torch.full((count,), special.bos, dtype=torch.long, device=device)
    ends, never = torch.tensor(special.ends, device=device), _never_said(special, device)
    ids = torch.full((max_length, count), special.pad, dtype=torch.long, device=device)
    log_probs = torch.zeros(max_length, count, device=device)
    lengths = torch.full((count,), max_length, dtype=torch.long, device=device)
    for position in range(max_length):
        best = _next_log_probs(net.step(state, tokens), never).max(-1)
        tokens = best.indices
        ids[position].index_copy_(0, rows, tokens)
        log_probs[position].index_copy_(0, rows, best.values)
        going = (tokens[:, None] != ends).all(1)
        # one answer from the device per step
        alive = int(going.sum())
        if alive < len(rows):
            lengths[rows[~going]] = position + 1
            if alive == 0:
                break
            if position + 1 < max_length:
                rows, tokens = rows[going], tokens[going]
                state = select_rows(state, going.nonzero()[:, 0])
    return _collect(ids.T, lengths, log_probs.sum(0))


@torch.no_grad()
def greedy_uncached(net: CaptionNet, features: PairFeatures, max_length: int, special: SpecialIds = OWN) -> Decoded:
    """As :func:`greedy`, but every step runs the whole decoder over the whole prefix of all pairs."""
    count, device = len(features), features.memory.device
    tokens = torch.full((count, 1, 1), special.bos, dtype=torch.long, device=device)
    sums = torch.zeros(count, device=device)
    lengths = torch.zeros(count, dtype=torch.long, device=device)
    going = torch.ones(count, dtype=torch.bool, device=device)
    ends, never = torch.tensor(special.ends, device=device), _never_said(special, device)
    for _ in range(max_length):
        best = _next_log_probs(net.logits(features, tokens)[:, 0, -1], never).max(-1)
        chosen = torch.where(going, best.indices, special.pad)
        sums += torch.where(going, best.values, 0.0)
        lengths += going
        tokens = torch.cat([tokens, chosen[:, None, None]], -1)
        going = going & ~torch.isin(chosen, ends)
        if not bool(going.any()):
            break
    return _collect(tokens[:, 0, 1:], lengths, sums)


def _collect(ids: Tensor, lengths: Tensor, sums: Tensor) -> Decoded:
    counts = lengths.tolist()
    return Decoded(
        [row[:count] for row, count in zip(ids.tolist(), counts, strict=True)],
        (sums / lengths.clamp(min=1)).tolist(),
    )


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
    sums = torch.zeros(pairs, 1, device=device)  # (live pairs, prefixes per pair)
    ends, never = torch.tensor(special.ends), _never_said(special, device)
    divisors = [length**length_penalty for length in range(1, max_length + 1)]
    for length in range(1, max_length + 1):
        log_probs = _next_log_probs(advance(prefixes, origins, going), never)
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
    if temperature <= 0 or not 0 < top_p <= 1 or samples < 1:
        raise ConfigError(
            f"sampling needs temperature > 0, 0 < top_p <= 1 and at least one sample; found {temperature}, {top_p} and "
            f"{samples}"
        )
    device, count = features.memory.device, len(features) * samples
    if uniforms is None:
        uniforms = torch.rand(count, length, generator=generator, device=generator.device if generator else None)
    uniforms = uniforms.to(device)
    pairs = torch.arange(len(features), device=device)
    owners = pairs.repeat_interleave(samples)
    state = net.start(features)
    shared = isinstance(state, BeamState)
    state = state.reorder(owners, pairs) if shared else select_rows(state, owners)
    ids = torch.full((count, length), special.pad, dtype=torch.long, device=device)
    sums = torch.zeros(count, device=device)
    lengths = torch.zeros(count, dtype=torch.long, device=device)
    rows = torch.arange(count, device=device)
    tokens = torch.full((count,), special.bos, dtype=torch.long, device=device)
    going = torch.ones(count, dtype=torch.bool, device=device)
    ends, never = torch.tensor(special.ends, device=device), _never_said(special, device)
    for position in range(length):
        log_probs = _next_log_probs(net.step(state, tokens), never)
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
    return _collect(ids, lengths, sums)


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
