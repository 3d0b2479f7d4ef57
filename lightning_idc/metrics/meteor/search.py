"""METEOR's search: which of the matches an alignment has.

Denkowski and Lavie (2014), section 2: of all sets of matches in which no word is in two, the one that covers most
words, then has fewest chunks, then the least distance between starts; found with a beam over the reference, from left
to right. Where the paper leaves an order open it is that of the program's answers: a path pays the distance of every
match that it could have taken before the one it takes, and of equal paths the one stays ahead that was ahead.

All pairs go from event to event at once. An event is a place where paths may differ, or the first place after such
ones, where chunks end; matches that exclude no other belong to every path and are no events.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_idc.metrics.corpus import Ints
from lightning_idc.metrics.meteor.matching import EXACT, Masks, Matches

BEAM = 40
# the n lowest bits of 64
_LOWEST: Masks = np.array([(1 << n) - 1 for n in range(65)], dtype=np.uint64)


class _Events(NamedTuple):
    """Places where paths change, ``(E,)`` each, by pair and place.

    Args:
        place: in the reference.
        first: first match that begins there.
        counts: number of matches that begin there.
        follows: word of the candidate with which a chunk goes on here, -2 for none.
        last: end of the last match for paths that take none here, -1 for none.
        begin: end of the last match before the pair's first event, ``(B,)``.
        start: first event of each pair, ``(B + 1,)``.
    """

    place: Ints
    first: Ints
    counts: Ints
    follows: Ints
    last: Ints
    begin: Ints
    start: Ints


def choose(matches: Matches, lengths: Ints, reference_lengths: Ints) -> NDArray[np.bool_]:
    """Whether each match belongs to the alignment of its pair, ``(M,)``.

    Args:
        matches: of all pairs.
        lengths: number of words of each pair's candidate, ``(B,)``.
        reference_lengths: number of words of each pair's reference, ``(B,)``.
    """
    chosen = _exclude_none(matches, lengths, reference_lengths)
    fixed, open_ = matches.take(chosen), np.flatnonzero(~chosen)
    if len(open_):
        contested = matches.take(open_)
        events = _events(contested, fixed, reference_lengths)
        chosen[open_[_beam(contested, events, lengths)]] = True
    return chosen


def _covered(pair: Ints, first: Ints, size: Ints, lengths: Ints) -> tuple[Ints, Ints]:
    """Row of every word that the matches cover, and the match."""
    start = np.cumsum(lengths) - lengths
    match = np.repeat(np.arange(len(pair)), size)
    offset = np.arange(len(match)) - np.repeat(np.cumsum(size) - size, size)
    return start[pair[match]] + first[match] + offset, match


def _exclude_none(matches: Matches, lengths: Ints, reference_lengths: Ints) -> NDArray[np.bool_]:
    """Matches whose words no other match covers."""
    alone = np.ones(len(matches.pair), dtype=bool)
    for first, size, total in (
        (matches.place, matches.size, reference_lengths),
        (matches.other, matches.other_size, lengths),
    ):
        word, match = _covered(matches.pair, first, size, total)
        alone[match[np.bincount(word)[word] > 1]] = False
    return alone


def _events(contested: Matches, fixed: Matches, lengths: Ints) -> _Events:
    pairs, width = len(lengths), int(lengths.max(initial=0)) + 2
    word, _ = _covered(contested.pair, contested.place, contested.size, np.full(pairs, width))
    event = np.zeros(pairs * width, dtype=bool)
    event[word] = True
    # sentences end before the last column, so no event is the first place of the next pair
    closing = np.zeros_like(event)
    closing[1:] = event[:-1] & ~event[1:]
    follows, ending = np.full(pairs * width, -2), np.full(pairs * width, -1)
    follows[fixed.pair * width + fixed.place] = fixed.other
    ending[fixed.pair * width + fixed.place + fixed.size] = fixed.other + fixed.other_size
    at = np.flatnonzero(event | closing)
    pair, place = np.divmod(at, width)
    start = np.searchsorted(pair, np.arange(pairs + 1))
    # after the run of places that a closing begins, all paths are at the end of what is fixed there
    last = np.where(closing[at], ending[np.append(at[1:], 0)], -1)
    begin = np.full(pairs, -1)
    begin[pair[start[:-1][start[:-1] < start[1:]]]] = ending[at[start[:-1][start[:-1] < start[1:]]]]
    key = contested.pair * width + contested.place
    first = np.searchsorted(key, at)
    return _Events(place, first, np.searchsorted(key, at, "right") - first, follows[at], last, begin, start)


def _masks(matches: Matches, rows: int) -> list[Masks]:
    """Words of the candidate that each match covers, as bits, 64 words a row of ``(M,)``."""
    masks = []
    for row in range(rows):
        low = np.clip(matches.other - 64 * row, 0, 64)
        high = np.clip(matches.other + matches.other_size - 64 * row, 0, 64)
        masks.append(_LOWEST[high] & ~_LOWEST[low])
    return masks


class _Costs(NamedTuple):
    """What a path costs, as one number: words that it does not cover, then chunks, then distance.

    Args:
        distance: of each match, ``(M,)``.
        chunk: cost of one chunk, above that of all distances.
        gain: of the words that each match covers, above that of all chunks, ``(M,)``.
        start: cost of the first path, from which gains are taken.
    """

    distance: Ints
    chunk: int
    gain: Ints
    start: int


class _Paths(NamedTuple):
    """Paths of all pairs at one event, ``(P,)`` each, by pair and from best to worst.

    Args:
        pair: number of the pair.
        cost: see :class:`_Costs`.
        free: first place in the reference that the path has not covered.
        last: end of its last match in the candidate, or -1.
        trace: number of its last choice, or -1.
        used: words of the candidate that it covers, as bits, 64 words a row.
    """

    pair: Ints
    cost: Ints
    free: Ints
    last: Ints
    trace: Ints
    used: list[Masks]

    def take(self, kept: NDArray[np.bool_]) -> _Paths:
        """Some of the paths."""
        pair, cost, free, last, trace = (field[kept] for field in self[:5])
        return _Paths(pair, cost, free, last, trace, [row[kept] for row in self.used])


def _beam(matches: Matches, events: _Events, lengths: Ints) -> Ints:
    """Numbers of the matches that the best path of each pair takes."""
    masks, costs = _masks(matches, int(lengths.max()) // 64 + 1), _costs(matches, events)
    steps = np.diff(events.start)
    pair = np.flatnonzero(steps)
    zeros = np.zeros(len(pair), dtype=np.int64)
    used = [np.zeros(len(pair), dtype=np.uint64) for _ in masks]
    paths = _Paths(pair, zeros + costs.start, zeros, events.begin[pair], zeros - 1, used)
    best, step, made, choices = np.full(len(steps), -1), 0, 0, [(zeros[:0], zeros[:0])]
    while len(paths.pair):
        children, choice = _step(paths, events.start[paths.pair] + step, matches, events, masks, costs)
        taking = choice >= 0
        choices.append((children.trace[taking], choice[taking]))
        trace = np.cumsum(taking) + (made - 1)
        made += len(choices[-1][0])
        paths = children._replace(trace=np.where(taking, trace, children.trace))
        step += 1
        ended = steps[paths.pair] == step
        finished, first = np.unique(paths.pair[ended], return_index=True)
        best[finished] = paths.trace[ended][first]
        if len(finished):
            paths = paths.take(~ended)
    parents, choice = (np.concatenate(rows) for rows in zip(*choices, strict=True))
    taken = []
    while len(best := best[best >= 0]):
        taken.append(choice[best])
        best = parents[best]
    return np.concatenate([zeros[:0], *taken])


def _costs(matches: Matches, events: _Events) -> _Costs:
    distance = np.abs(matches.place - matches.other)
    chunk = int(np.bincount(matches.pair, weights=distance).max()) + 1
    # other matches than exact ones count half, rounded down on either side: that of a stem or a synonym counts nothing
    share = np.where(matches.kind == EXACT, 1, 2)
    words = matches.size // share + matches.other_size // share
    gain = words * chunk * (int(np.diff(events.start).max()) + 2)
    return _Costs(distance, chunk, gain, int(np.bincount(matches.pair, weights=gain).max()))


def _step(
    paths: _Paths, event: Ints, matches: Matches, events: _Events, masks: list[Masks], costs: _Costs
) -> tuple[_Paths, Ints]:
    """The best children of all paths at one event, and the match that each takes, or -1."""
    # a path that is inside a match stays as it is
    outside = events.place[event] >= paths.free
    count = np.where(outside, events.counts[event], 0) + 1
    end = np.cumsum(count)
    parent = np.repeat(np.arange(len(count)), count)
    # children: one for each match, then one that takes none
    match = (events.first[event] - end + count)[parent] + np.arange(len(parent))
    match[end - 1] = 0
    takes = np.ones(len(parent), dtype=bool)
    takes[end - 1] = False
    blocked = np.zeros(len(parent), dtype=bool)
    for row, mask in zip(paths.used, masks, strict=True):
        blocked |= (row[parent] & mask[match]).astype(bool)
    blocked &= takes
    takes &= ~blocked
    distance = costs.distance[match] * takes
    paid = np.cumsum(distance) - distance
    goes_on = np.where(takes, matches.other[match], events.follows[event][parent])
    ends = (outside & (paths.last != -1))[parent] & (goes_on != paths.last[parent])
    cost = (paths.cost - paid[end - count])[parent] + paid + costs.chunk * ends - costs.gain[match] * takes
    kept = np.flatnonzero(~blocked)
    kept = kept[_best(paths.pair[parent[kept]], cost[kept])]
    parent, match, takes = parent[kept], match[kept], takes[kept]
    passive = np.where(outside, events.last[event], paths.last)[parent]
    return _Paths(
        paths.pair[parent],
        cost[kept],
        np.where(takes, matches.place[match] + matches.size[match], paths.free[parent]),
        np.where(takes, matches.other[match] + matches.other_size[match], passive),
        paths.trace[parent],
        [row[parent] | mask[match] * takes for row, mask in zip(paths.used, masks, strict=True)],
    ), np.where(takes, match, -1)


def _best(pair: Ints, cost: Ints) -> Ints:
    """Numbers of the paths that the beam keeps, by pair and cost; of equals the earlier is better."""
    span = int(cost.max()) + 1
    # costs of very long sentences leave no room for the pair in the same number
    fits = (int(pair.max()) + 1) * span < 1 << 63
    order = np.argsort(pair * span + cost, kind="stable") if fits else np.lexsort((cost, pair))
    count = np.bincount(pair)
    if count.max(initial=0) <= BEAM:
        return order
    start = np.cumsum(count) - count
    return order[np.arange(len(order)) - start[pair[order]] < BEAM]
